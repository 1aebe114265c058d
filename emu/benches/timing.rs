//! Prints the timing model's validation: per micro-benchmark what was published, what is predicted, and their ratio.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/micro/mod.rs"]
mod micro;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    table(&wanted, micro::rows());
    println!("\nnot fitted:\n");
    table(&wanted, micro::not_fitted());
}

/// Prints the rows that are wanted, by number or a word of theirs; all where nothing is said.
fn table(wanted: &[String], rows: Vec<micro::Row>) {
    println!("| row | GPU | what | unit | published | predicted | ratio |\n|---|---|---|---|---|---|---|");
    let mut ratios = Vec::new();
    for row in rows {
        let named = |word: &String| row.what.contains(word.as_str()) || row.number == *word;
        if !wanted.is_empty() && !wanted.iter().any(named) {
            continue;
        }
        let Some(predicted) = (row.predict)() else { continue };
        let ratio = predicted / row.published;
        ratios.push((ratio - 1.0).abs());
        println!(
            "| {} | {} | {} | {} | {:.4} | {:.4} | {:.2} |",
            row.number, row.gpu, row.what, row.unit, row.published, predicted, ratio
        );
    }
    ratios.sort_by(f64::total_cmp);
    if let (Some(middle), Some(worst)) = (ratios.get(ratios.len() / 2), ratios.last()) {
        println!(
            "\nmedian error {:.1}%, largest {:.1}%, {} of {} within 10%",
            100.0 * middle,
            100.0 * worst,
            ratios.iter().filter(|r| **r <= 0.1).count(),
            ratios.len()
        );
    }
}
