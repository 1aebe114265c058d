//! What a model or an artifact holds, as text.

use graphc::facts::Contents;

use super::{escape, output};

/// Writes one line a fact.
pub fn text(contents: &Contents) -> String {
    let made = contents.artifact.as_ref().map_or(String::new(), |v| {
        format!(", an artifact of graphc {} in format {}", v.graphc, v.format)
    });
    let targets = contents.targets.join(", ");
    let mut text = format!("{}{made}: {targets}\n", escape::name(&contents.name));
    for s in &contents.sizes {
        let max = s.max.map_or(String::new(), |m| m.to_string());
        text += &format!("  size {}: {}..{max}, hint {}\n", escape::name(&s.name), s.min, s.hint);
    }
    for (what, ports) in [("input", &contents.inputs), ("output", &contents.outputs)] {
        for p in ports {
            let name = escape::name(&p.name);
            text += &format!("  {what} {name}: {}[{}]\n", p.dtype, p.shape.join(", "));
        }
    }
    for w in &contents.weights {
        let bytes = output::bytes(w.bytes as u64);
        text += &format!("  weights: {} of {}, {bytes}\n", w.count, w.dtype);
    }
    text
}
