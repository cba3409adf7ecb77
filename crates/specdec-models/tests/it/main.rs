//! Loading and computing tiny models whose weights are made from seeds, and a real one on request.

mod dense_attend;
mod gguf_format;
mod golden;
mod h1_output_weights;
mod h2_same_weights;
mod h3_rotary_scaling;
mod h4_unsupported;
mod h5_damage;
mod h6_parts;
mod hostile;
mod model;
mod options;
mod reference;
mod tiny;
mod windows;
