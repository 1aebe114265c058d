//! A small network written in the DSL, compiled once, run at several batch sizes.
//!
//!     cargo run --example mlp

use graphc::prelude::*;
use nn::{Activation, Linear, Sequential};

fn main() -> anyhow::Result<()> {
    // Random weights here; `Params::new(Weights::open("model.safetensors")?)` takes them from a file, by the same
    // names.
    let params = Params::random(42);
    let model = Sequential::new()
        .then(Linear::load(&params.sub("fc1"), 64, 128)?)
        .then(Activation::Relu)
        .then(Linear::load(&params.sub("fc2"), 128, 10)?)
        .then(Activation::Softmax);

    // Recording: "batch" is a size that is known only when the model runs.
    let x = InputSpec::new("x", DType::F32, shape!["batch", 64]);
    let graph = trace("mlp", [x], |[x]| [("probabilities", model.forward(&x))])?;
    let session = Session::compile(graph, &SessionOptions::default())?;

    for batch in [1usize, 3] {
        let x = HostTensor::from_f32([batch, 64], &vec![0.5; batch * 64])?;
        let outputs = session.run(&[("x", &x)])?;
        let probabilities = outputs["probabilities"].to_f32();
        for row in probabilities.chunks(10) {
            let sum: f32 = row.iter().sum();
            println!("batch {batch}: {row:.3?}, sum {sum:.3}");
            anyhow::ensure!((sum - 1.0).abs() < 1e-4, "probabilities add up to {sum}");
        }
    }

    // Without a session: tensors that start from data compile behind the scenes when their values are asked for.
    let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]);
    let squares = (&a * &a + 1.0).to_vec::<f32>()?;
    println!("a² + 1 = {squares:?}");
    Ok(())
}
