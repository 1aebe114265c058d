//! Reads an `OrtGraph` into plain data: nodes as ONNX's messages, values with their types.
//!
//! Handles stay valid during the call of ONNX Runtime's that the graph was given to, and so do the values read here.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::ptr;

use bytes::Bytes;
use graphc::frontend::onnx::proto::attribute_proto::AttributeType;
use graphc::frontend::onnx::proto::tensor_shape_proto::{Dimension, dimension};
use graphc::frontend::onnx::proto::{
    AttributeProto, GraphProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, type_proto,
};
use ort_sys::{
    ONNXTensorElementDataType, ONNXType, OrtGraph, OrtNode, OrtOpAttr, OrtOpAttrType, OrtStatusPtr,
    OrtTensorTypeAndShapeInfo, OrtValue, OrtValueInfo,
};

use crate::api::{Api, text};
use crate::error::{ProviderError, Result};
use crate::options::NAME;

/// Element types of ONNX Runtime and of ONNX have the same codes up to this one.
const LAST_COMMON_CODE: i32 = 23;
const STRING: i32 = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING as i32;

/// A graph as read.
pub struct Graph {
    pub name: String,
    pub ir_version: i64,
    pub opsets: Vec<(String, i64)>,
    /// The model's file; empty for a model from memory.
    pub model_path: PathBuf,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    /// In topological order.
    pub nodes: Vec<Node>,
    pub values: HashMap<String, Value>,
}

pub struct Node {
    pub handle: *const OrtNode,
    /// Without a name where the model gives none.
    pub proto: NodeProto,
    /// Values of the outer graph that subgraphs read.
    pub implicit: Vec<String>,
    /// Why the node cannot be read as ONNX has it.
    pub problem: Option<String>,
    /// The provider that has the node already.
    pub provider: String,
}

impl Node {
    /// The names of all values that the node reads.
    pub fn reads(&self) -> impl Iterator<Item = &str> {
        let inputs = self.proto.input.iter().chain(&self.implicit);
        inputs.map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The names of the values that the node computes.
    pub fn writes(&self) -> impl Iterator<Item = &str> {
        self.proto
            .output
            .iter()
            .map(String::as_str)
            .filter(|name| !name.is_empty())
    }
}

pub struct Value {
    pub handle: *const OrtValueInfo,
    /// Its type as far as it is known.
    pub ty: TypeProto,
    /// Whether an initializer gives it that no run overrides.
    pub is_constant: bool,
}

impl Value {
    /// The code of a tensor's element type; `None` for what is no tensor.
    pub fn element(&self) -> Option<i32> {
        match &self.ty.value {
            Some(type_proto::Value::TensorType(tensor)) => Some(tensor.elem_type),
            _ => None,
        }
    }

    /// A tensor's sizes, where all are known.
    pub fn fixed_shape(&self) -> Option<Vec<i64>> {
        let Some(type_proto::Value::TensorType(tensor)) = &self.ty.value else {
            return None;
        };
        let dims = tensor.shape.as_ref()?.dim.iter().map(|dim| match &dim.value {
            Some(dimension::Value::DimValue(size)) => Some(*size),
            _ => None,
        });
        dims.collect()
    }

    /// The names of the sizes that its shape leaves open.
    pub fn open_sizes(&self) -> impl Iterator<Item = &str> {
        let shape = match &self.ty.value {
            Some(type_proto::Value::TensorType(tensor)) => tensor.shape.as_ref(),
            _ => None,
        };
        let dims = shape.into_iter().flat_map(|shape| &shape.dim);
        dims.filter_map(|dim| match &dim.value {
            Some(dimension::Value::DimParam(name)) => Some(name.as_str()),
            _ => None,
        })
    }
}

/// Reads graphs by ONNX Runtime's functions.
///
/// Every function that takes a handle is only given handles that ONNX Runtime gave during the call under way.
pub struct Reader {
    api: Api,
}

/// Reads a list whose length one function gives, and whose entries another.
macro_rules! list {
    ($reader:expr, $count:ident, $get:ident, $handle:expr) => {{
        let mut count = 0usize;
        // SAFETY: the handle is valid, as all handles of a reader are.
        $reader.check(stringify!($count), unsafe {
            ($reader.api.ort.$count)($handle, &mut count)
        })?;
        let mut entries = vec![ptr::null(); count];
        // SAFETY: there is room for as many entries as there are.
        $reader.check(stringify!($get), unsafe {
            ($reader.api.ort.$get)($handle, entries.as_mut_ptr(), count)
        })?;
        entries
    }};
}

/// Reads one value by a function of ONNX Runtime's.
macro_rules! get {
    ($reader:expr, $get:ident, $handle:expr, $initial:expr) => {{
        let mut value = $initial;
        // SAFETY: the handle is valid, as all handles of a reader are.
        $reader.check(stringify!($get), unsafe { ($reader.api.ort.$get)($handle, &mut value) })?;
        value
    }};
}

impl Reader {
    /// # Safety
    /// All handles that the reader is given are valid while it reads and while what it read is used.
    pub unsafe fn new(api: Api) -> Reader {
        Reader { api }
    }

    fn check(&self, function: &'static str, status: OrtStatusPtr) -> Result<()> {
        self.api.check(function, status)
    }

    /// Reads a whole graph.
    ///
    /// # Errors
    /// Errors of ONNX Runtime.
    pub fn graph(&self, graph: *const OrtGraph) -> Result<Graph> {
        let mut count = 0usize;
        // SAFETY: as all calls here, by a valid handle; the arrays have room for all operator sets.
        let (domains, versions) = unsafe {
            self.check(
                "Graph_GetNumOperatorSets",
                (self.api.ort.Graph_GetNumOperatorSets)(graph, &mut count),
            )?;
            let (mut domains, mut versions) = (vec![ptr::null::<c_char>(); count], vec![0i64; count]);
            let status =
                (self.api.ort.Graph_GetOperatorSets)(graph, domains.as_mut_ptr(), versions.as_mut_ptr(), count);
            self.check("Graph_GetOperatorSets", status)?;
            (domains.into_iter().map(|d| text(d)).collect::<Vec<_>>(), versions)
        };
        let mut read = Graph {
            name: self.string(get!(self, Graph_GetName, graph, ptr::null())),
            ir_version: get!(self, Graph_GetOnnxIRVersion, graph, 0i64),
            opsets: domains.into_iter().zip(versions).collect(),
            model_path: PathBuf::from(self.string(get!(self, Graph_GetModelPath, graph, ptr::null()))),
            inputs: Vec::new(),
            outputs: Vec::new(),
            nodes: Vec::new(),
            values: HashMap::new(),
        };
        for input in list!(self, Graph_GetNumInputs, Graph_GetInputs, graph) {
            let name = self.value(input, &mut read.values)?;
            read.inputs.push(name);
        }
        for output in list!(self, Graph_GetNumOutputs, Graph_GetOutputs, graph) {
            let name = self.value(output, &mut read.values)?;
            read.outputs.push(name);
        }
        for node in list!(self, Graph_GetNumNodes, Graph_GetNodes, graph) {
            let node = self.node(node, &mut read.values)?;
            read.nodes.push(node);
        }
        Ok(read)
    }

    /// The node whose subgraph a graph is.
    ///
    /// # Errors
    /// Errors of ONNX Runtime.
    pub fn parent(&self, graph: *const OrtGraph) -> Result<Option<*const OrtNode>> {
        let parent = get!(self, Graph_GetParentNode, graph, ptr::null());
        Ok((!parent.is_null()).then_some(parent))
    }

    /// Reads a node; what cannot be read as ONNX has it is the node's problem.
    ///
    /// # Errors
    /// Errors of ONNX Runtime.
    pub fn node(&self, node: *const OrtNode, values: &mut HashMap<String, Value>) -> Result<Node> {
        let mut read = Node {
            handle: node,
            proto: NodeProto {
                name: self.string(get!(self, Node_GetName, node, ptr::null())),
                op_type: self.string(get!(self, Node_GetOperatorType, node, ptr::null())),
                domain: self.string(get!(self, Node_GetDomain, node, ptr::null())),
                ..NodeProto::default()
            },
            implicit: Vec::new(),
            problem: None,
            provider: self.string(get!(self, Node_GetEpName, node, ptr::null())),
        };
        for input in list!(self, Node_GetNumInputs, Node_GetInputs, node) {
            let name = self.value(input, values)?;
            read.proto.input.push(name);
        }
        for output in list!(self, Node_GetNumOutputs, Node_GetOutputs, node) {
            let name = self.value(output, values)?;
            read.proto.output.push(name);
        }
        for input in list!(self, Node_GetNumImplicitInputs, Node_GetImplicitInputs, node) {
            let name = self.value(input, values)?;
            read.implicit.push(name);
        }
        for attribute in list!(self, Node_GetNumAttributes, Node_GetAttributes, node) {
            match self.attribute(attribute) {
                Ok(Some(attribute)) => read.proto.attribute.push(attribute),
                Ok(None) => {}
                Err(error) => read.problem = Some(error.to_string()),
            }
        }
        let count = get!(self, Node_GetNumSubgraphs, node, 0usize);
        if count > 0 {
            let (mut graphs, mut names) = (vec![ptr::null::<OrtGraph>(); count], vec![ptr::null::<c_char>(); count]);
            // SAFETY: both arrays have room for all subgraphs.
            let status =
                unsafe { (self.api.ort.Node_GetSubgraphs)(node, graphs.as_mut_ptr(), count, names.as_mut_ptr()) };
            self.check("Node_GetSubgraphs", status)?;
            for (graph, name) in graphs.into_iter().zip(names) {
                match self.subgraph(graph) {
                    Ok(graph) => read.proto.attribute.push(AttributeProto {
                        name: self.string(name),
                        r#type: AttributeType::Graph as i32,
                        g: Some(graph),
                        ..AttributeProto::default()
                    }),
                    Err(error) => read.problem = Some(error.to_string()),
                }
            }
        }
        Ok(read)
    }

    /// Reads a graph of an attribute, with its initializers.
    fn subgraph(&self, graph: *const OrtGraph) -> Result<GraphProto> {
        let read = self.graph(graph)?;
        if let Some(node) = read.nodes.iter().find(|node| node.problem.is_some()) {
            let problem = node.problem.clone().unwrap_or_default();
            return Err(ProviderError::Unexpected(problem));
        }
        if let Some(node) = read
            .nodes
            .iter()
            .find(|node| !["", NAME].contains(&node.provider.as_str()))
        {
            let of = format!("a node of its subgraph is of provider {}", node.provider);
            return Err(ProviderError::Unexpected(of));
        }
        let mut initializer = Vec::new();
        for value in list!(self, Graph_GetNumInitializers, Graph_GetInitializers, graph) {
            let name = self.string(get!(self, GetValueInfoName, value, ptr::null()));
            initializer.push(self.initializer(&name, value, true)?);
        }
        let declared = |names: &[String]| -> Vec<ValueInfoProto> { names.iter().map(|n| read.declared(n)).collect() };
        Ok(GraphProto {
            name: read.name.clone(),
            input: declared(&read.inputs),
            output: declared(&read.outputs),
            initializer,
            node: read.nodes.into_iter().map(|node| node.proto).collect(),
            ..GraphProto::default()
        })
    }

    /// Notes a value and returns its name; a missing one has none.
    fn value(&self, value: *const OrtValueInfo, values: &mut HashMap<String, Value>) -> Result<String> {
        if value.is_null() {
            return Ok(String::new());
        }
        let name = self.string(get!(self, GetValueInfoName, value, ptr::null()));
        if !name.is_empty() && !values.contains_key(&name) {
            let read = Value {
                handle: value,
                ty: self.value_type(value)?,
                is_constant: get!(self, ValueInfo_IsConstantInitializer, value, false),
            };
            values.insert(name.clone(), read);
        }
        Ok(name)
    }

    /// Reads a value's type; it is empty for what is no tensor.
    fn value_type(&self, value: *const OrtValueInfo) -> Result<TypeProto> {
        let info = get!(self, GetValueInfoTypeInfo, value, ptr::null());
        if info.is_null() {
            return Ok(TypeProto::default());
        }
        let mut kind = 0i32;
        // SAFETY: the type lives as long as the value. Numbers that `ort-sys` does not know stay numbers.
        let status = unsafe { (self.api.ort.GetOnnxTypeFromTypeInfo)(info, (&raw mut kind).cast::<ONNXType>()) };
        self.check("GetOnnxTypeFromTypeInfo", status)?;
        if kind != ONNXType::ONNX_TYPE_TENSOR as i32 {
            return Ok(TypeProto::default());
        }
        let tensor = get!(self, CastTypeInfoToTensorInfo, info, ptr::null());
        if tensor.is_null() {
            return Ok(TypeProto::default());
        }
        let (element, dims) = self.tensor_info(tensor)?;
        // SAFETY: the tensor's description lives as long as the type.
        let has_shape = unsafe { (self.api.ort.TensorTypeAndShape_HasShape)(tensor) };
        let shape = if has_shape {
            Some(self.shape(tensor, &dims)?)
        } else {
            None
        };
        Ok(TypeProto {
            value: Some(type_proto::Value::TensorType(type_proto::Tensor {
                elem_type: element,
                shape,
            })),
            ..TypeProto::default()
        })
    }

    fn shape(&self, tensor: *const OrtTensorTypeAndShapeInfo, dims: &[i64]) -> Result<TensorShapeProto> {
        let mut names = vec![ptr::null::<c_char>(); dims.len()];
        // SAFETY: there is room for a name of each dim.
        let status = unsafe { (self.api.ort.GetSymbolicDimensions)(tensor, names.as_mut_ptr(), names.len()) };
        self.check("GetSymbolicDimensions", status)?;
        let dim = dims.iter().zip(names).map(|(size, name)| {
            let name = self.string(name);
            let value = match (*size >= 0, name.is_empty()) {
                (true, _) => Some(dimension::Value::DimValue(*size)),
                (false, false) => Some(dimension::Value::DimParam(name)),
                (false, true) => None,
            };
            Dimension {
                value,
                ..Dimension::default()
            }
        });
        Ok(TensorShapeProto { dim: dim.collect() })
    }

    /// A tensor's element type, and its dims: -1 where they are open.
    fn tensor_info(&self, tensor: *const OrtTensorTypeAndShapeInfo) -> Result<(i32, Vec<i64>)> {
        let mut element = 0i32;
        let count = get!(self, GetDimensionsCount, tensor, 0usize);
        let mut dims = vec![0i64; count];
        // SAFETY: there is room for all dims. Types that `ort-sys` does not know stay numbers.
        unsafe {
            let out = (&raw mut element).cast::<ONNXTensorElementDataType>();
            self.check("GetTensorElementType", (self.api.ort.GetTensorElementType)(tensor, out))?;
            let status = (self.api.ort.GetDimensions)(tensor, dims.as_mut_ptr(), count);
            self.check("GetDimensions", status)?;
        }
        Ok((element, dims))
    }

    /// Reads an attribute; graphs are read with their node.
    fn attribute(&self, attribute: *const OrtOpAttr) -> Result<Option<AttributeProto>> {
        let name = self.string(get!(self, OpAttr_GetName, attribute, ptr::null()));
        let mut kind = 0i32;
        // SAFETY: kinds that `ort-sys` does not know stay numbers.
        let status = unsafe { (self.api.ort.OpAttr_GetType)(attribute, (&raw mut kind).cast::<OrtOpAttrType>()) };
        self.check("OpAttr_GetType", status)?;
        let mut read = AttributeProto {
            name,
            ..AttributeProto::default()
        };
        use OrtOpAttrType as Kind;
        let kinds = [
            Kind::ORT_OP_ATTR_INT,
            Kind::ORT_OP_ATTR_INTS,
            Kind::ORT_OP_ATTR_FLOAT,
            Kind::ORT_OP_ATTR_FLOATS,
            Kind::ORT_OP_ATTR_STRING,
            Kind::ORT_OP_ATTR_STRINGS,
            Kind::ORT_OP_ATTR_GRAPH,
            Kind::ORT_OP_ATTR_TENSOR,
        ];
        let Some(kind) = kinds.into_iter().find(|known| *known as i32 == kind) else {
            let of = format!("attribute {:?} has a type that is not read (code {kind})", read.name);
            return Err(ProviderError::Unexpected(of));
        };
        let ty = match kind {
            Kind::ORT_OP_ATTR_GRAPH => return Ok(None),
            Kind::ORT_OP_ATTR_INT => {
                read.i = self
                    .numbers(attribute, kind, i64::from_le_bytes)?
                    .first()
                    .copied()
                    .unwrap_or(0);
                AttributeType::Int
            }
            Kind::ORT_OP_ATTR_INTS => {
                read.ints = self.numbers(attribute, kind, i64::from_le_bytes)?;
                AttributeType::Ints
            }
            Kind::ORT_OP_ATTR_FLOAT => {
                read.f = self
                    .numbers(attribute, kind, f32::from_le_bytes)?
                    .first()
                    .copied()
                    .unwrap_or(0.0);
                AttributeType::Float
            }
            Kind::ORT_OP_ATTR_FLOATS => {
                read.floats = self.numbers(attribute, kind, f32::from_le_bytes)?;
                AttributeType::Floats
            }
            Kind::ORT_OP_ATTR_STRING => {
                let mut bytes = self.bytes(attribute, kind)?;
                // Some versions end it with a zero.
                bytes.pop_if(|last| *last == 0);
                read.s = bytes.into();
                AttributeType::String
            }
            Kind::ORT_OP_ATTR_STRINGS => {
                let bytes = self.bytes(attribute, kind)?;
                // Each ends with a zero.
                let mut strings: Vec<Bytes> = bytes.split(|b| *b == 0).map(Bytes::copy_from_slice).collect();
                strings.pop();
                read.strings = strings;
                AttributeType::Strings
            }
            _ => {
                let tensor = get!(self, OpAttr_GetTensorAttributeAsOrtValue, attribute, ptr::null_mut());
                let read_tensor = self.tensor("", tensor, true);
                // SAFETY: the value is ours, and was copied.
                unsafe { (self.api.ort.ReleaseValue)(tensor) };
                read.t = Some(read_tensor?);
                AttributeType::Tensor
            }
        };
        read.r#type = ty as i32;
        Ok(Some(read))
    }

    /// The bytes of an attribute.
    fn bytes(&self, attribute: *const OrtOpAttr, kind: OrtOpAttrType) -> Result<Vec<u8>> {
        let mut length = 0usize;
        // SAFETY: the first call writes nothing but the length, and its status says that there was no room.
        unsafe {
            let status = (self.api.ort.ReadOpAttr)(attribute, kind, ptr::null_mut(), 0, &mut length);
            if !status.0.is_null() {
                (self.api.ort.ReleaseStatus)(status.0);
            }
        }
        let mut bytes = vec![0u8; length];
        if length > 0 {
            // SAFETY: there is room for all bytes.
            let status = unsafe {
                (self.api.ort.ReadOpAttr)(
                    attribute,
                    kind,
                    bytes.as_mut_ptr().cast::<c_void>(),
                    length,
                    &mut length,
                )
            };
            self.check("ReadOpAttr", status)?;
        }
        Ok(bytes)
    }

    fn numbers<T, const N: usize>(
        &self,
        attribute: *const OrtOpAttr,
        kind: OrtOpAttrType,
        of: fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let bytes = self.bytes(attribute, kind)?;
        let (numbers, _) = bytes.as_chunks::<N>();
        Ok(numbers.iter().map(|bytes| of(*bytes)).collect())
    }

    /// Reads the value of an initializer: a copy, or bytes that are valid as long as ONNX Runtime's are.
    ///
    /// # Errors
    /// Text, types that ONNX has no code for here, and what ONNX Runtime reports.
    pub fn initializer(&self, name: &str, value: *const OrtValueInfo, owned: bool) -> Result<TensorProto> {
        let tensor = get!(self, ValueInfo_GetInitializerValue, value, ptr::null());
        if tensor.is_null() {
            return Err(ProviderError::Unexpected(format!("initializer {name:?} has no value")));
        }
        self.tensor(name, tensor, owned)
    }

    /// The file, offset and length of an initializer's bytes, where those are in a file.
    pub fn external(&self, value: *const OrtValueInfo) -> Result<Option<(PathBuf, usize, usize)>> {
        let info = get!(self, ValueInfo_GetExternalInitializerInfo, value, ptr::null_mut());
        if info.is_null() {
            return Ok(None);
        }
        // SAFETY: the description is ours, and is freed once.
        let (path, offset, length) = unsafe {
            let path = PathBuf::from(text((self.api.ort.ExternalInitializerInfo_GetFilePath)(info)));
            let offset = (self.api.ort.ExternalInitializerInfo_GetFileOffset)(info);
            let length = (self.api.ort.ExternalInitializerInfo_GetByteSize)(info);
            (self.api.ort.ReleaseExternalInitializerInfo)(info);
            (path, offset, length)
        };
        Ok(usize::try_from(offset).ok().map(|offset| (path, offset, length)))
    }

    fn tensor(&self, name: &str, value: *const OrtValue, owned: bool) -> Result<TensorProto> {
        let info = get!(self, GetTensorTypeAndShape, value, ptr::null_mut());
        let described = self.tensor_info(info);
        // SAFETY: the description is ours, and was read.
        unsafe { (self.api.ort.ReleaseTensorTypeAndShapeInfo)(info) };
        let (data_type, dims) = described?;
        if data_type == STRING || data_type > LAST_COMMON_CODE {
            let of = format!("tensor {name:?} has an element type that is not read (code {data_type})");
            return Err(ProviderError::Unexpected(of));
        }
        let length = get!(self, GetTensorSizeInBytes, value, 0usize);
        let data = get!(self, GetTensorData, value, ptr::null());
        let raw_data = match length {
            0 => Bytes::new(),
            // SAFETY: the tensor has that many bytes, which outlive what the reader read.
            _ if owned => Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) }),
            _ => Bytes::from_owner(Foreign {
                data: data.cast(),
                length,
            }),
        };
        Ok(TensorProto {
            name: name.to_owned(),
            dims,
            data_type,
            raw_data,
            ..TensorProto::default()
        })
    }

    fn string(&self, pointer: *const c_char) -> String {
        // SAFETY: ONNX Runtime's strings are null or end with a zero.
        unsafe { text(pointer) }
    }
}

/// Bytes of a tensor of ONNX Runtime's.
struct Foreign {
    data: *const u8,
    length: usize,
}

// SAFETY: the bytes of initializers are only read.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl AsRef<[u8]> for Foreign {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: whoever makes a reader promises that tensors outlive what it read.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }
}

impl Graph {
    /// A value with its type.
    pub fn declared(&self, name: &str) -> ValueInfoProto {
        ValueInfoProto {
            name: name.to_owned(),
            r#type: self.values.get(name).map(|value| value.ty.clone()),
            ..ValueInfoProto::default()
        }
    }
}
