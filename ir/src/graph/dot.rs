//! Graphviz's text of a graph: `graphc compile MODEL --target cpu --emit dot | dot -Tsvg`.

use std::fmt::Write as _;

use super::Graph;
use super::op::Op;

/// Prints a graph for Graphviz: one box a node, one edge an operand, constants left out unless they have no name.
pub fn dot(graph: &Graph) -> String {
    let mut out = String::from("digraph {\n  rankdir=TB;\n  node [shape=box, fontname=\"monospace\"];\n");
    for (id, node) in graph.nodes().iter() {
        let types: Vec<String> = node.results.iter().map(ToString::to_string).collect();
        let what = match &node.op {
            Op::Input { index } => {
                let name = graph.inputs().get(*index as usize).map_or("", |i| i.name.as_str());
                format!("input {name}")
            }
            Op::Constant(c) => format!("constant {}", super::print::constant_name(graph, *c)),
            op => op.name().to_owned(),
        };
        let style = match &node.op {
            Op::Input { .. } => ", style=filled, fillcolor=lightblue",
            Op::Constant(_) => ", style=filled, fillcolor=lightgray",
            Op::Call(_) => ", style=filled, fillcolor=khaki",
            _ => "",
        };
        let label = escape(&format!("{id} {what}\n{}", types.join(", ")));
        let _ = writeln!(out, "  {id} [label=\"{label}\"{style}];");
        for (i, operand) in node.operands.iter().enumerate() {
            let _ = writeln!(
                out,
                "  {} -> {id} [taillabel=\"{}\", headlabel=\"{i}\"];",
                operand.node, operand.index
            );
        }
    }
    for (i, output) in graph.outputs().iter().enumerate() {
        let label = escape(&format!("output {}", output.name));
        let _ = writeln!(out, "  out{i} [label=\"{label}\", style=filled, fillcolor=lightgreen];");
        let _ = writeln!(out, "  {} -> out{i};", output.value.node);
    }
    out.push_str("}\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_escaped() {
        let text = "graph @g { n0 = input \"a\\\"b\" : f32[2] n1 = exp n0 return n1 as \"y\" }";
        let out = super::dot(&crate::graph::parse::parse(text).unwrap());
        assert!(out.contains("n0 [label=\"n0 input a\\\"b\\nf32[2]\""), "{out}");
        assert!(out.contains("n0 -> n1") && out.contains("n1 -> out0"), "{out}");
    }
}
