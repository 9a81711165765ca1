//! State backends and the snapshot format.
