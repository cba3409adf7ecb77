use crate::error::{RakvError, Result};
use serde::{Deserialize, Serialize};
use specdec_core::{BuildError, ModelSpec};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// Version of what is stored and how; entries of another version are refused.
pub(crate) const FORMAT: u32 = 1;

/// What keys and values depend on beside the tokens: two models whose identities are equal have
/// equal entries. Token ids are not part of it, nor are tokenizer and chat template: the ids
/// themselves are compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    format: u32,
    fingerprint: String,
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    windows: Vec<Option<usize>>,
    /// How it is computed: backend, numeric mode, version of the tensor library, byte order,
    /// architecture and vector instructions.
    numerics: String,
    /// What else tells entries apart: adapters, quantised weights or caches.
    revision: String,
}

/// The architecture, and which of the instructions are there on which it depends how CPU kernels
/// round: without fused multiply-add they round twice, and wider vectors may add up in another order.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    let vectors = {
        let fused = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        if fused && is_x86_feature_detected!("avx512f") {
            "avx512f"
        } else if fused {
            "avx2 with fma"
        } else {
            "no fma"
        }
    };
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = "its own vectors";
    format!("{} with {vectors}", std::env::consts::ARCH)
}

impl Identity {
    /// The identity of a model's entries on its device.
    ///
    /// # Errors
    /// [`RakvError::NoFingerprint`] when the model has none.
    pub fn of(spec: &ModelSpec) -> Result<Self> {
        if spec.fingerprint == 0 {
            return Err(RakvError::NoFingerprint);
        }
        let order = if cfg!(target_endian = "little") {
            "le"
        } else {
            "be"
        };
        Ok(Self {
            format: FORMAT,
            fingerprint: format!("{:016x}", spec.fingerprint),
            layers: spec.layers,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            windows: (0..spec.layers).map(|l| spec.window(l)).collect(),
            numerics: format!("{:?}, burn 0.22, {order}, {}", spec.device, processor()),
            revision: String::new(),
        })
    }

    /// Says how it is computed, where more is to be told apart than the device.
    pub fn with_numerics(mut self, numerics: impl Into<String>) -> Self {
        self.numerics = numerics.into();
        self
    }

    /// Says what else tells entries apart, such as an adapter's digest.
    pub fn with_revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = revision.into();
        self
    }

    /// A digest of all of it, the same on every platform and in every run.
    pub fn digest(&self) -> u128 {
        xxh3_128(self.canonical().as_bytes())
    }

    pub(crate) fn canonical(&self) -> String {
        let windows: Vec<String> = self
            .windows
            .iter()
            .map(|w| w.map_or("-".into(), |w| w.to_string()))
            .collect();
        format!(
            "format {}|fingerprint {}|layers {}|kv heads {}|head dim {}|windows {}|numerics {}|revision {}",
            self.format,
            self.fingerprint,
            self.layers,
            self.kv_heads,
            self.head_dim,
            windows.join(","),
            self.numerics,
            self.revision
        )
    }

    pub(crate) fn layers(&self) -> usize {
        self.layers
    }

    /// Key/value heads and their dimension.
    pub(crate) fn heads(&self) -> [usize; 2] {
        [self.kv_heads, self.head_dim]
    }

    /// The first thing in which another identity differs: what, its value, the value here.
    pub(crate) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let windows = |i: &Self| format!("{:?}", i.windows);
        let pairs = [
            ("format", other.format.to_string(), self.format.to_string()),
            (
                "fingerprint",
                other.fingerprint.clone(),
                self.fingerprint.clone(),
            ),
            (
                "number of layers",
                other.layers.to_string(),
                self.layers.to_string(),
            ),
            (
                "number of kv heads",
                other.kv_heads.to_string(),
                self.kv_heads.to_string(),
            ),
            (
                "head dimension",
                other.head_dim.to_string(),
                self.head_dim.to_string(),
            ),
            ("window", windows(other), windows(self)),
            (
                "numeric mode",
                other.numerics.clone(),
                self.numerics.clone(),
            ),
            ("revision", other.revision.clone(), self.revision.clone()),
        ];
        pairs.into_iter().find(|(_, a, b)| a != b)
    }

    pub(crate) fn refuse(&self, path: &Path, other: &Self) -> Result<()> {
        match self.difference(other) {
            None => Ok(()),
            Some((what, found, wanted)) => Err(RakvError::Mismatch {
                path: path.to_path_buf(),
                what,
                found,
                wanted,
            }),
        }
    }

    /// Whether a model's entries are these, whatever their revision.
    pub(crate) fn check(&self, spec: &ModelSpec) -> Result<(), BuildError> {
        let of = Self::of(spec).map_err(|e| BuildError::Prefixes(e.to_string()))?;
        match self.difference(&of.with_revision(self.revision.clone())) {
            None => Ok(()),
            Some((what, target, own)) => Err(BuildError::Prefixes(format!(
                "their {what} is {own}, the target's is {target}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::prelude::Device;

    /// Kernels without fused multiply-add round otherwise: their entries are others.
    #[test]
    fn processors_that_round_otherwise_have_other_entries() {
        let target = specdec_testkit::HashLm::new(10, &Device::flex());
        let spec = specdec_core::TargetModel::spec(&target);
        let own = Identity::of(spec).expect("it has a fingerprint");
        let says = |what: &str| own.numerics.contains(what);
        assert!(says(std::env::consts::ARCH), "{}", own.numerics);
        #[cfg(target_arch = "x86_64")]
        {
            let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            assert!(fused || says("no fma"), "{}", own.numerics);
            let wide = is_x86_feature_detected!("avx512f");
            assert_eq!(says("avx512f"), wide && !says("no fma"));
            assert!(says("avx") || says("no fma"), "{}", own.numerics);
        }
        let elsewhere = own.numerics.replace(&processor(), "another machine");
        let other = own.clone().with_numerics(elsewhere);
        let difference = own.difference(&other).expect("they differ");
        assert_eq!(difference.0, "numeric mode");
    }
}
