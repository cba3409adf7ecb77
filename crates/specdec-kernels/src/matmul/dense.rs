use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

use super::DeviceWeight;

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
}

impl DeviceWeight for Dense {
    fn dims(&self) -> [usize; 2] {
        self.weight.dims()
    }

    fn device(&self) -> Device {
        self.weight.device()
    }

    fn matmul(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.clone().transpose())
    }

    fn rows(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        self.weight.clone().select(0, ids)
    }

    fn to_dense(&self) -> Tensor<2> {
        self.weight.clone().cast(FloatDType::F32)
    }

    fn memory_bytes(&self) -> usize {
        let [n, k] = self.dims();
        n * k * self.weight.dtype().size()
    }
}
