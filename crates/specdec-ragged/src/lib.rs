//! Ragged-batch KV caches for specdec: rows of different lengths, exact positions, rollback by length.
