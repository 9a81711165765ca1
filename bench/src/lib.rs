//! Benchmarks.
//!
//! Owns: nothing but the dependencies of what is beside it: `benches/` has criterion benches of
//! single parts (`make micro`), `flink/` the comparison with Flink (`make bench`), `limits.py`
//! memory, checkpoints and scaling (`make limits`), `results/` what they showed where.
