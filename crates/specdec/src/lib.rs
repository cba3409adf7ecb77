//! Lossless speculative decoding for Burn: more tokens per second, not one token changed.
