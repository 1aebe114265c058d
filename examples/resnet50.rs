//! ResNet-50 in the DSL: the model is examples/src/models/resnet.rs.
//!
//!     cargo run --release --example resnet50 [DEVICE [resnet50.safetensors]]
//!
//! The device is `cpu` unless another is named (`hip`, `cuda`, `auto`). The file is torchvision's state dict saved by
//! `safetensors.torch.save_file`; without one the weights are random.

use std::time::Instant;

use graphc::prelude::*;
use graphc_examples::models::resnet::ResNet;

fn main() -> anyhow::Result<()> {
    let device: DeviceChoice = std::env::args().nth(1).as_deref().unwrap_or("cpu").parse()?;
    let params = match std::env::args().nth(2) {
        Some(file) => Params::new(Weights::open(file)?),
        None => Params::random(7),
    };
    let graph = ResNet::resnet50(&params)?.graph()?;

    let start = Instant::now();
    let session = Session::compile(graph, &SessionOptions::default().device(device)?)?;
    println!("compiled in {:.2?}", start.elapsed());
    if let Some(executable) = session.executable() {
        let (launches, calls) = executable.plan().launches();
        println!(
            "{} launches for 53 convolutions, 53 batch norms, 49 ReLUs and the rest",
            launches + calls
        );
    }

    // A gradient as image; a real one is scaled to 224 × 224, and normalised by ImageNet's mean and deviation.
    let pixels: Vec<f32> = (0..3 * 224 * 224).map(|i| (i % 224) as f32 / 112.0 - 1.0).collect();
    let image = HostTensor::from_f32([1, 3, 224, 224], &pixels)?;
    let start = Instant::now();
    let logits = session.run(&[("image", &image)])?["logits"].to_f32();
    println!("ran in {:.2?}", start.elapsed());
    let again = (0..20).map(|_| {
        let start = Instant::now();
        session.run(&[("image", &image)]).map(|_| start.elapsed())
    });
    let mut times = again.collect::<Result<Vec<_>, _>>()?;
    times.sort();
    println!("then, of 20 runs: best {:.2?}, median {:.2?}", times[0], times[10]);

    let mut classes: Vec<usize> = (0..logits.len()).collect();
    classes.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    for class in &classes[..5] {
        println!("class {class}: {:.3}", logits[*class]);
    }
    anyhow::ensure!(logits.iter().all(|v| v.is_finite()), "the logits are not finite");
    Ok(())
}
