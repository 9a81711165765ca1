//! Compiles the `.proto` files, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "streamforge/v1/coordinator.proto",
        "streamforge/v1/exchange.proto",
        "streamforge/v1/control.proto",
    ];
    let descriptors = protox::compile(files, ["."])?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(descriptors)?;
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    Ok(())
}
