//! Makes a model of some nodes of a graph, and says which of them an import refuses.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use bytes::Bytes;
use graphc::frontend::onnx::proto::{GraphProto, NodeProto, TensorProto};
use graphc::frontend::onnx::{ImportError, ImportOptions, Model, import_model};
use graphc::ir;

use crate::error::Result;
use crate::files::Files;
use crate::graph::{Graph, Reader};

/// Initializers as messages, by name: each is read once, however many regions have it.
pub struct Initializers<'a> {
    reader: &'a Reader,
    /// Whether messages own their bytes, or have them only while ONNX Runtime's call lasts.
    owned: bool,
    files: Files,
    read: HashMap<String, TensorProto>,
}

impl<'a> Initializers<'a> {
    pub fn new(reader: &'a Reader, owned: bool) -> Initializers<'a> {
        Initializers {
            reader,
            owned,
            files: Files::default(),
            read: HashMap::new(),
        }
    }

    fn get(&mut self, graph: &Graph, name: &str) -> Result<TensorProto> {
        if let Some(tensor) = self.read.get(name) {
            // Its bytes are shared.
            return Ok(tensor.clone());
        }
        let value = &graph.values[name];
        let mapped = self.mapped(graph, name)?;
        let tensor = match mapped {
            Some(bytes) => {
                let mut tensor = TensorProto {
                    name: name.to_owned(),
                    data_type: value.element().unwrap_or(0),
                    raw_data: bytes,
                    ..TensorProto::default()
                };
                tensor.dims = value.fixed_shape().unwrap_or_default();
                tensor
            }
            None => self.reader.initializer(name, value.handle, self.owned)?,
        };
        self.read.insert(name.to_owned(), tensor.clone());
        Ok(tensor)
    }

    /// The bytes of an initializer that is in a file, which stays mapped; ONNX Runtime need not read it.
    fn mapped(&mut self, graph: &Graph, name: &str) -> Result<Option<Bytes>> {
        let value = &graph.values[name];
        let Some((path, offset, length)) = self.reader.external(value.handle)? else {
            return Ok(None);
        };
        let known = value.element().is_some() && value.fixed_shape().is_some();
        let folder = graph.model_path.parent();
        let (true, Some(folder)) = (known, folder) else {
            return Ok(None);
        };
        Ok(self.files.part(&folder.join(path), offset, length))
    }
}

/// A model of some nodes of a graph.
pub struct Region {
    pub model: Model,
    /// Each node's place in the graph, by the name that it has in the model.
    names: HashMap<String, usize>,
}

impl Region {
    /// Makes a model of nodes of a graph, with these outputs; its inputs are what the nodes read and no node or
    /// constant gives.
    ///
    /// # Errors
    /// A constant that cannot be read, with the place of a node that reads it.
    pub fn new(
        graph: &Graph,
        nodes: &[usize],
        outputs: &[String],
        initializers: &mut Initializers<'_>,
    ) -> std::result::Result<Region, (usize, String)> {
        let made: HashSet<&str> = nodes.iter().flat_map(|n| graph.nodes[*n].writes()).collect();
        let mut seen = HashSet::new();
        let mut proto = GraphProto {
            name: graph.name.clone(),
            ..GraphProto::default()
        };
        let mut names = HashMap::new();
        for &index in nodes {
            let node = &graph.nodes[index];
            for name in node.reads() {
                if made.contains(name) || !seen.insert(name) {
                    continue;
                }
                match graph.values.get(name) {
                    Some(value) if value.is_constant => {
                        let tensor = initializers
                            .get(graph, name)
                            .map_err(|error| (index, error.to_string()))?;
                        proto.initializer.push(tensor);
                    }
                    _ => proto.input.push(graph.declared(name)),
                }
            }
            let mut node = node.proto.clone();
            rename(&mut node, index, "", &mut names);
            proto.node.push(node);
        }
        proto.output = outputs.iter().map(|name| graph.declared(name)).collect();
        let model = Model {
            path: match graph.model_path.as_os_str().is_empty() {
                true => PathBuf::from("model"),
                false => graph.model_path.clone(),
            },
            ir_version: graph.ir_version,
            producer: "ONNX Runtime".to_owned(),
            opsets: graph
                .opsets
                .iter()
                .map(|(domain, version)| (canonical(domain).to_owned(), *version))
                .collect(),
            graph: proto,
            functions: Vec::new(),
            metadata: Default::default(),
            external: Vec::new(),
        };
        Ok(Region { model, names })
    }

    /// Imports the region with open sizes, with those options that are of its sizes.
    ///
    /// # Errors
    /// As the importer's.
    pub fn import(&self, options: &ImportOptions) -> std::result::Result<ir::Graph, ImportError> {
        import_model(&self.model, &self.options(options))
    }

    /// The options that are of this region's sizes.
    pub fn options(&self, options: &ImportOptions) -> ImportOptions {
        let mut own = options.clone();
        if !own.sizes.is_empty() {
            let open = self.open_sizes();
            own.sizes.retain(|name, _| open.contains(name.as_str()));
        }
        own
    }

    fn open_sizes(&self) -> HashSet<&str> {
        use graphc::frontend::onnx::proto::tensor_shape_proto::dimension::Value;
        use graphc::frontend::onnx::proto::type_proto;
        let types = self.model.graph.input.iter().filter_map(|input| input.r#type.as_ref());
        let shapes = types.filter_map(|ty| match &ty.value {
            Some(type_proto::Value::TensorType(tensor)) => tensor.shape.as_ref(),
            _ => None,
        });
        let dims = shapes.flat_map(|shape| &shape.dim);
        dims.filter_map(|dim| match &dim.value {
            Some(Value::DimParam(name)) => Some(name.as_str()),
            _ => None,
        })
        .collect()
    }

    /// The places of the nodes at fault for an error, with what it says of each; empty where none can be named.
    pub fn at_fault(&self, graph: &Graph, nodes: &[usize], error: &ImportError) -> Vec<(usize, String)> {
        let reads = |value: &str| -> Vec<(usize, String)> {
            let readers = nodes
                .iter()
                .filter(|n| graph.nodes[**n].reads().any(|name| name == value));
            readers.map(|n| (*n, error.to_string())).collect()
        };
        let writes = |value: &str| -> Vec<(usize, String)> {
            let makers = nodes
                .iter()
                .filter(|n| graph.nodes[**n].writes().any(|name| name == value));
            makers.map(|n| (*n, error.to_string())).collect()
        };
        match error {
            ImportError::UnknownOps(ops) => {
                let known = ops.iter().filter_map(|op| {
                    let domain = if op.domain.is_empty() { "ai.onnx" } else { &op.domain };
                    let why = format!("graphc has no op {} (domain {domain}, opset {})", op.op, op.opset);
                    Some((*self.names.get(&op.node)?, why))
                });
                known.collect()
            }
            ImportError::Node(node) => match self.names.get(&node.node) {
                Some(index) => vec![(*index, error.to_string())],
                // Outputs and conditions have names of their own.
                None => writes(&node.node),
            },
            ImportError::Input { name, .. } | ImportError::Initializer { name, .. } => reads(name),
            ImportError::Output { name, .. } => writes(name),
            _ => Vec::new(),
        }
    }
}

/// ONNX's own domain in its short spelling.
fn canonical(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// Gives a node a name that no other has, and the nodes of its subgraphs; keeps its own where it can.
fn rename(node: &mut NodeProto, index: usize, outer: &str, names: &mut HashMap<String, usize>) {
    let mut name = match node.name.is_empty() {
        true => format!("{outer}{}_{index}", node.op_type),
        false => format!("{outer}{}", node.name),
    };
    while names.contains_key(&name) {
        name.push_str(&format!("_{}", names.len()));
    }
    names.insert(name.clone(), index);
    for attribute in &mut node.attribute {
        for graph in attribute.g.iter_mut().chain(&mut attribute.graphs) {
            for inner in &mut graph.node {
                rename(inner, index, &format!("{name}/"), names);
            }
        }
    }
    node.name = name;
}
