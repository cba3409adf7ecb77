//! Exact toy targets, scripted drafters, strategies and conformance suites for implementers of specdec traits.
