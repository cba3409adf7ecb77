use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

/// A weight held as a tensor of the device's float type: every backend can multiply by it.
#[derive(Clone)]
pub(super) struct Dense {
    weight: Tensor<2>,
}

impl Dense {
    pub(super) fn new(data: Vec<f32>, dims: [usize; 2], device: &Device) -> Self {
        let weight = Tensor::from_data(TensorData::new(data, dims), device);
        Self { weight }
    }

    pub(super) fn dims(&self) -> [usize; 2] {
        self.weight.dims()
    }

    pub(super) fn device(&self) -> Device {
        self.weight.device()
    }

    pub(super) fn matmul(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.clone().transpose())
    }

    pub(super) fn rows(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        self.weight.clone().select(0, ids)
    }

    pub(super) fn to_dense(&self) -> Tensor<2> {
        self.weight.clone().cast(FloatDType::F32)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let [n, k] = self.dims();
        n * k * self.weight.dtype().size()
    }
}
