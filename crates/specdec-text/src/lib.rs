//! Tokenizers, incremental detokenizing, stop strings and chat templates for specdec.
