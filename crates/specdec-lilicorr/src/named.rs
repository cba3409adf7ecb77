//! Parameters by the names that checkpoints use: the path of fields that leads to them.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::prelude::*;

/// Calls `found` with the name and the shape of every parameter, in the order of the fields.
pub(crate) fn names<M: Module>(module: &M) -> Vec<(String, Vec<usize>)> {
    let mut visitor = Names::default();
    module.visit(&mut visitor);
    visitor.found
}

#[derive(Default)]
struct Names {
    path: Vec<String>,
    found: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for Names {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.val().dims().to_vec();
        self.found.push((self.path.join("."), shape));
    }
}

/// The values of every parameter, in the order of the fields.
pub(crate) fn values<M: Module>(module: &M) -> Vec<TensorData> {
    struct Values(Vec<TensorData>);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data());
        }
    }
    let mut visitor = Values(Vec::new());
    module.visit(&mut visitor);
    visitor.0
}

/// Gives the values of a parameter, by its name and shape.
pub(crate) type Fill<'f> = dyn FnMut(&str, &[usize]) -> Option<Vec<f32>> + 'f;

/// The module with every parameter's values replaced by what `fill` gives for its name and shape.
/// Parameters for which it gives nothing, or not enough, stay as they are.
pub(crate) fn filled<M: Module>(module: M, fill: &mut Fill<'_>) -> M {
    let mut mapper = Filling {
        path: Vec::new(),
        fill,
    };
    module.map(&mut mapper)
}

struct Filling<'a, 'f> {
    path: Vec<String>,
    fill: &'a mut Fill<'f>,
}

impl ModuleMapper for Filling<'_, '_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join(".");
        param.map(|tensor| {
            let shape = tensor.dims();
            match (self.fill)(&name, &shape) {
                Some(values) if values.len() == shape.iter().product::<usize>() => {
                    let grad = tensor.is_require_grad();
                    let data = TensorData::new(values, shape);
                    Tensor::from_data(data, &tensor.device()).set_require_grad(grad)
                }
                _ => tensor,
            }
        })
    }
}

/// A number of 64 bits from a name and a seed.
fn digest(name: &str, seed: u64) -> u64 {
    name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |h, byte| {
        (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Uniform numbers in (0, 1) that are a function of a name, a seed and their place.
pub(crate) struct Uniform(u64);

impl Uniform {
    pub(crate) fn new(name: &str, seed: u64) -> Self {
        Self(digest(name, seed))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn next(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.next().ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * self.next()).cos()
    }
}

/// Starting values of a parameter, by its name: norms 1; biases, slot and rank embeddings and the
/// head's bias tables 0; the fused attention map Xavier-uniform; the rest normal with deviation
/// 0.02, or `1 / sqrt(in)` times `scale` for narrow models.
pub(crate) fn initial(name: &str, shape: &[usize], seed: u64, deviation: Option<f64>) -> Vec<f32> {
    let n = shape.iter().product();
    let last = name.rsplit('.').next().unwrap_or(name);
    let of_norm = name.trim_end_matches(".weight").ends_with("norm");
    if of_norm && last == "weight" {
        return vec![1.0; n];
    }
    let zero = ["bias", "in_proj_bias", "slot_embedding", "rank_embedding"].contains(&last)
        || ["relative_slot_bias", "same_slot_bias"].contains(&last);
    if zero {
        return vec![0.0; n];
    }
    let mut draws = Uniform::new(name, seed);
    let (out, inputs) = (shape[0] as f64, shape.get(1).copied().unwrap_or(1) as f64);
    if last == "in_proj_weight" {
        let bound = (6.0 / (out + inputs)).sqrt();
        return (0..n)
            .map(|_| ((2.0 * draws.next() - 1.0) * bound) as f32)
            .collect();
    }
    let deviation = deviation.unwrap_or(0.02);
    (0..n)
        .map(|_| (draws.normal() * deviation) as f32)
        .collect()
}
