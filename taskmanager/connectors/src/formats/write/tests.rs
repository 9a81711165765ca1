use super::*;
#[test]
fn smoke() {}
