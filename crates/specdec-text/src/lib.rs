#![doc = include_str!("../README.md")]

mod automaton;
pub mod chat;
pub mod detokenize;
mod error;
pub mod stop;
pub mod tokenizer;

pub use crate::{
    chat::{ChatOptions, ChatTemplate, Message, encode_chat},
    detokenize::Detokenizer,
    error::{Result, TextError},
    stop::{StopHit, StopMatcher, StopOutput, StopState, StopStrings},
    tokenizer::{GgufVocabulary, Special, Tokenizer, VocabularyDifference},
};
