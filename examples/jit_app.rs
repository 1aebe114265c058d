//! A JIT inside a small app: several threads search a collection of vectors with one compiled function.
//!
//!     cargo run --example jit_app
//!
//! The function is recorded and compiled at its first call. The number of queries is dynamic, so requests of any size
//! run the same program.

use std::thread;

use graphc::prelude::*;

const ITEMS: usize = 1000;
const WIDTH: usize = 32;

fn main() -> anyhow::Result<()> {
    // The three items most similar to each query, and their similarities.
    let search = jit(|[queries, items]: [Tensor; 2]| {
        let queries = queries.normalize(-1, 1e-6);
        let items = items.normalize(-1, 1e-6);
        queries.matmul_t(&items).topk(-1, 3)
    })
    .dynamic_within(0, 0, "queries", 1..=64);

    let items = Tensor::randn(shape![ITEMS, WIDTH], 1).to_host()?;
    let vectors = items.to_f32();

    // Each request asks for some of the items themselves, so that the best answer is known.
    let serve = |request: usize| -> anyhow::Result<()> {
        let asked: Vec<usize> = (0..=request).map(|i| (request * 37 + i * 11) % ITEMS).collect();
        let rows: Vec<f32> = asked
            .iter()
            .flat_map(|i| vectors[i * WIDTH..][..WIDTH].to_vec())
            .collect();
        let queries = HostTensor::from_f32([asked.len(), WIDTH], &rows)?;
        let (similarity, found) = search.call([&queries, &items])?;
        let best: Vec<usize> = found.to_i64().chunks(3).map(|row| row[0] as usize).collect();
        anyhow::ensure!(best == asked, "request {request}: asked for {asked:?}, found {best:?}");
        println!(
            "request {request}: {} queries, first match {:.3}",
            asked.len(),
            similarity.to_f32()[0]
        );
        Ok(())
    };
    thread::scope(|scope| {
        let requests: Vec<_> = (0..8)
            .map(|request| {
                scope.spawn({
                    let serve = &serve;
                    move || serve(request)
                })
            })
            .collect();
        requests
            .into_iter()
            .try_for_each(|r| r.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a request panicked"))))
    })?;

    let stats = search.stats();
    println!("{} calls, compiled {} time", stats.runs, stats.compiles);
    anyhow::ensure!(stats.compiles == 1, "sizes within the bounds must not compile again");
    Ok(())
}
