//! The behaviour of this crate, by the situations that it was made for.

mod chat;
mod decode;
mod difference;
mod encode;
mod ends;
mod fixtures;
mod hostile;
mod sentence_piece;
mod stop;
mod templates;
