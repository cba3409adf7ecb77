//! Stands in for `cubecl-llvm` where its build could not download LLVM.
//!
//! `cubecl-cuda` can turn kernels into CUDA C++ for NVRTC (its feature `cpp`) and then never compiles
//! with LLVM, but it names the types of this crate either way. Here they are, without a compiler: asking
//! one of them to compile is an error.

use cubecl_core::ir::nvidia::SmArch;
use cubecl_core::prelude::KernelDefinition;
use cubecl_environment::backtrace::BackTrace;
use cubecl_runtime::compiler::CompilationError;
use cubecl_runtime::kernel::BufferIOAttr;
use std::ffi::c_char;
use std::fmt;

/// What is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LlvmTarget {
    /// The host.
    #[default]
    Cpu,
    /// PTX.
    Nvptx,
}

/// The compiler that is not here.
#[derive(Debug, Clone, Default)]
pub struct PlironCompiler {
    /// Its target.
    pub target: LlvmTarget,
}

/// Its options.
#[derive(Debug, Clone, Default)]
pub struct PlironOptions {
    /// AMD's architecture: none.
    pub arch: Option<()>,
    /// NVIDIA's architecture.
    pub sm_arch: Option<SmArch>,
    /// The version of PTX.
    pub ptx_version: Option<nvptx::ptx_version::PtxVersion>,
    /// Whether arguments are constants of the grid.
    pub grid_constants: bool,
    /// What else there is.
    pub rest: (),
}

/// A compiled kernel as PTX.
#[derive(Debug, Clone)]
pub struct NvptxModule {
    /// The text, with its final zero.
    pub ptx: Vec<c_char>,
    /// The kernel's name in it.
    pub entrypoint: String,
    /// What it was made from.
    pub ir: String,
    /// Bytes of shared memory.
    pub shared_memory_size: usize,
    /// How each buffer is used.
    pub io: Vec<BufferIOAttr>,
}

/// What a compilation gives.
#[derive(Debug, Clone)]
pub enum PlironArtifact {
    /// Code in memory.
    Jit,
    /// PTX.
    NvptxCode(NvptxModule),
}

impl fmt::Display for PlironArtifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing: this build has no LLVM")
    }
}

impl cubecl_core::Compiler for PlironCompiler {
    type Representation = PlironArtifact;
    type CompilationOptions = PlironOptions;

    fn compile(
        &mut self,
        _: KernelDefinition,
        _: &PlironOptions,
    ) -> Result<PlironArtifact, CompilationError> {
        let reason = "this build has no LLVM; kernels go through NVRTC (cubecl-cuda's feature `cpp`)";
        Err(CompilationError::Validation {
            reason: reason.into(),
            backtrace: BackTrace::capture(),
        })
    }

    fn extension(&self) -> &'static str {
        "ll"
    }

    fn lang_tag(&self) -> &'static str {
        "none"
    }
}

/// Names of the PTX back end.
pub mod nvptx {
    /// Versions of PTX.
    pub mod ptx_version {
        use std::fmt;

        /// A version that a driver understands.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct PtxVersion(u32);

        impl PtxVersion {
            /// None: nothing is compiled here.
            pub fn for_driver(_: i32) -> Option<Self> {
                None
            }
        }

        impl fmt::Display for PtxVersion {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "ptx{}", self.0)
            }
        }
    }
}

/// Names shared by GPU back ends.
pub mod shared {
    /// What a back end can lower.
    pub mod lowered_features {
        use cubecl_core::ir::DeviceProperties;

        /// Which back end.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum GpuTarget {
            /// PTX.
            Nvptx,
        }

        /// Leaves the device's features as they are.
        pub fn restrict_features(_: &mut DeviceProperties, _: GpuTarget) {}
    }
}
