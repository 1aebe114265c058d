//! Cases that scripts have packed: see `scripts/py/onnx_node_cases.py`.

use std::path::Path;

use graphc_frontend::onnx::proto::TensorProto;
use graphc_frontend::onnx::tensor_view;
use indexmap::IndexMap;
use ir::HostTensor;
use prost::Message;

/// A model with inputs and what it gives for them.
pub struct Case {
    pub name: String,
    pub model: Vec<u8>,
    pub inputs: Vec<TensorProto>,
    pub outputs: Vec<TensorProto>,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> usize {
        let (head, rest) = self.0.split_at(4);
        self.0 = rest;
        u32::from_le_bytes(head.try_into().unwrap()) as usize
    }

    fn blob(&mut self) -> &'a [u8] {
        let len = self.number();
        let (head, rest) = self.0.split_at(len);
        self.0 = rest;
        head
    }

    fn tensors(&mut self) -> Vec<TensorProto> {
        (0..self.number())
            .map(|_| TensorProto::decode(self.blob()).unwrap())
            .collect()
    }
}

/// Reads a file of `tests/data`. A case without a model has that of the case before.
pub fn cases(file: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(file);
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Reader(&bytes);
    let mut cases = Vec::new();
    while !reader.0.is_empty() {
        let name = String::from_utf8(reader.blob().to_vec()).unwrap();
        let mut model = reader.blob().to_vec();
        if model.is_empty() {
            model = cases.last().map(|case: &Case| case.model.clone()).unwrap_or_default();
        }
        cases.push(Case {
            name,
            model,
            inputs: reader.tensors(),
            outputs: reader.tensors(),
        });
    }
    cases
}

/// The tensors by name; `None` where one has an element type that graphc does not have.
pub fn host(tensors: &[TensorProto]) -> Option<IndexMap<String, HostTensor>> {
    tensors
        .iter()
        .map(|t| Some((t.name.clone(), tensor_view(t).ok()?.to_host().ok()?)))
        .collect()
}
