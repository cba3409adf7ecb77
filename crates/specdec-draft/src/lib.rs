//! Plain drafters for specdec: n-gram prompt look-up and a small autoregressive draft model.
