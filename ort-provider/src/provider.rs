//! The provider of one session: which nodes it takes, and what becomes of them.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use graphc::session::OpenDevice;
use graphc::{Session, SessionOptions};
use ort_sys::{OrtGraph, OrtNode, OrtStatusPtr};

use crate::abi::{API_VERSION, OrtEp, OrtEpGraphSupportInfo, OrtNodeComputeInfo, OrtNodeFusionOptions};
use crate::api::{Api, Logger, c_string, ok, text};
use crate::capability::{self, Capability};
use crate::compute::{Border, Kernel, Source};
use crate::context;
use crate::counters::{COUNTERS, Count};
use crate::error::{OptionProblem, ProviderError, Result};
use crate::graph::{Graph, Node, Reader};
use crate::options::{NAME, ProviderOptions};
use crate::region::{Initializers, Region};

/// A session's provider. It is made as a box whose address is the table's.
#[repr(C)]
pub struct Provider {
    table: OrtEp,
    api: Api,
    logger: Logger,
    name: CString,
    options: ProviderOptions,
    /// The options' own, with the device opened.
    session: SessionOptions,
    /// An error of the options that only the model shows. ONNX Runtime drops errors of `GetCapability`, so `Compile`
    /// gives it.
    wrong: Mutex<Option<ProviderError>>,
}

impl Provider {
    pub fn new(api: Api, logger: Logger, options: ProviderOptions, device: OpenDevice) -> Box<Provider> {
        if let Some(reason) = &device.fallback {
            logger.warn(&format!("graphc: computes on the CPU: {reason}"));
        }
        let mut session = options.session.clone();
        session.target = device.target;
        session.device = Some(device);
        Box::new(Provider {
            table: OrtEp {
                ort_version_supported: API_VERSION,
                get_name,
                get_capability,
                compile,
                release_node_compute_infos,
                get_preferred_data_layout: None,
                should_convert_data_layout_for_op: None,
                set_dynamic_options: Some(set_dynamic_options),
                on_run_start: None,
                on_run_end: None,
                create_allocator: None,
                create_sync_stream_for_device: None,
                get_compiled_model_compatibility_info: None,
                get_kernel_registry: None,
                later: [None; 16],
            },
            api,
            logger,
            name: c_string(NAME),
            options,
            session,
            wrong: Mutex::default(),
        })
    }

    /// Tells ONNX Runtime which nodes of a graph become regions.
    fn capability(&self, handle: *const OrtGraph, support: *mut OrtEpGraphSupportInfo) -> Result<()> {
        // SAFETY: the graph is valid during this call, and so is all that it leads to.
        let reader = unsafe { Reader::new(self.api) };
        let graph = reader.graph(handle)?;
        let parent = reader.parent(handle)?;
        match parent {
            // The node around the graph is taken with all that is in it.
            Some(parent) if self.takes(&reader, &graph, parent)? => return Ok(()),
            Some(_) => {}
            None => self.check_sizes(&graph),
        }
        for node in graph.nodes.iter().filter(|node| context::is_ours(&node.proto)) {
            self.fuse(support, &[node.handle], false)?;
        }
        let Capability { regions, refused } = self.regions(&graph, &reader);
        for region in &regions {
            let nodes: Vec<*const OrtNode> = region.iter().map(|node| graph.nodes[*node].handle).collect();
            self.fuse(support, &nodes, true)?;
        }
        self.report(&graph, &regions, &refused);
        Ok(())
    }

    fn regions(&self, graph: &Graph, reader: &Reader) -> Capability {
        capability::regions(graph, reader, &self.options.import, self.options.min_nodes)
    }

    /// Whether a node that a graph is in can be taken by itself, and so will be, when ONNX Runtime asks for the graph
    /// around it: it asks for inner graphs first, and shows nothing of the outer ones.
    fn takes(&self, reader: &Reader, inner: &Graph, node: *const OrtNode) -> Result<bool> {
        let mut values = HashMap::new();
        let node = reader.node(node, &mut values)?;
        let alone = Graph {
            name: inner.name.clone(),
            ir_version: inner.ir_version,
            opsets: inner.opsets.clone(),
            model_path: inner.model_path.clone(),
            inputs: Vec::new(),
            outputs: node.writes().map(str::to_owned).collect(),
            nodes: vec![node],
            values,
        };
        let Capability { regions, refused } = self.regions(&alone, reader);
        if regions.is_empty() {
            self.report(&alone, &regions, &refused);
        }
        Ok(self.options.min_nodes == 1 && !regions.is_empty())
    }

    fn fuse(&self, support: *mut OrtEpGraphSupportInfo, nodes: &[*const OrtNode], drop: bool) -> Result<()> {
        let options = OrtNodeFusionOptions {
            ort_version_supported: API_VERSION,
            drop_constant_initializers: drop,
        };
        // SAFETY: the nodes are of the graph under way; the options are read.
        let status = unsafe { (self.api.ep.add_nodes_to_fuse)(support, nodes.as_ptr(), nodes.len(), &options) };
        self.api.check("EpGraphSupportInfo_AddNodesToFuse", status)
    }

    /// Sizes that were bounded must be the model's.
    fn check_sizes(&self, graph: &Graph) {
        let known = graph.values.values().flat_map(|value| value.open_sizes());
        let known: BTreeSet<&str> = known.collect();
        let missing = self
            .options
            .import
            .sizes
            .keys()
            .find(|name| !known.contains(name.as_str()));
        if let Some(name) = missing {
            *self.wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(ProviderError::Option {
                key: "sizes".to_owned(),
                problem: OptionProblem::NoSize {
                    name: name.clone(),
                    known: known.into_iter().map(str::to_owned).collect(),
                },
            });
        }
    }

    fn report(&self, graph: &Graph, regions: &[Vec<usize>], refused: &[Option<String>]) {
        let taken: usize = regions.iter().map(Vec::len).sum();
        let of = graph.nodes.len();
        let count = regions.len();
        self.logger
            .info(&format!("graphc: takes {taken} of {of} nodes, in {count} regions"));
        for (node, why) in graph.nodes.iter().zip(refused) {
            if let Some(why) = why {
                let Node { proto, .. } = node;
                let name = if proto.name.is_empty() {
                    node.writes().next().unwrap_or_default()
                } else {
                    &proto.name
                };
                self.logger
                    .info(&format!("graphc: leaves {} node {name:?}: {why}", proto.op_type));
            }
        }
    }

    /// Compiles the regions of a session.
    fn compile(
        &self,
        graphs: &[*const OrtGraph],
        fused: &[*const OrtNode],
        kernels: &mut Vec<Kernel>,
        nodes: &mut Vec<*mut OrtNode>,
    ) -> Result<()> {
        if let Some(error) = self.wrong.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        // SAFETY: the graphs are valid during this call. What outlives it owns its bytes.
        let reader = unsafe { Reader::new(self.api) };
        let mut initializers = Initializers::new(&reader, true);
        for (handle, fused) in graphs.iter().zip(fused) {
            let graph = reader.graph(*handle)?;
            let mut values = HashMap::new();
            let fused = reader.node(*fused, &mut values)?;
            let name = fused.proto.name.clone();
            let mut region = CompiledRegion::new(self, &graph, &fused)?;
            let (session, source) = match graph.nodes.as_slice() {
                [node] if context::is_context_node(&node.proto) => {
                    region.is_context = true;
                    (self.load(node, &graph.model_path)?, None)
                }
                _ => self.compile_region(&graph, &mut initializers)?,
            };
            let borders = (region.inputs, region.outputs);
            let kernel = Kernel::new(self.api, self.logger, name.clone(), borders, session, source)?;
            if self.options.context.enable {
                if region.is_context {
                    return Err(ProviderError::SessionOption {
                        key: "ep.context_enable".to_owned(),
                        value: "1".to_owned(),
                        reason: "the model is compiled already",
                    });
                }
                let ports = (&fused.proto.input[..], &fused.proto.output[..]);
                let program: &Arc<_> = kernel.program()?;
                let model: PathBuf = graph.model_path.clone();
                nodes.push(context::node(
                    self.api,
                    &name,
                    ports,
                    program,
                    &model,
                    &self.options.context,
                )?);
            }
            kernels.push(kernel);
        }
        Ok(())
    }

    fn compile_region(&self, graph: &Graph, initializers: &mut Initializers<'_>) -> Result<(Session, Option<Source>)> {
        let all: Vec<usize> = (0..graph.nodes.len()).collect();
        let region = Region::new(graph, &all, &graph.outputs, initializers);
        let region = region.map_err(|(_, why)| ProviderError::Unexpected(why))?;
        let import = region.options(&self.options.import);
        let source = Source {
            model: region.model,
            import,
            session: self.session.clone(),
        };
        let session = source.compile()?;
        Ok((session, self.options.specialize.then_some(source)))
    }

    fn load(&self, node: &Node, model: &std::path::Path) -> Result<Session> {
        let program = context::load(&node.proto, model)?;
        let session = Session::of_program(Arc::new(program), &self.session)?;
        COUNTERS.add(Count::Loaded);
        Ok(session)
    }
}

/// The inputs and outputs of a fused node.
struct CompiledRegion {
    inputs: Vec<Border>,
    outputs: Vec<Border>,
    is_context: bool,
}

impl CompiledRegion {
    fn new(provider: &Provider, graph: &Graph, fused: &Node) -> Result<CompiledRegion> {
        let border = |name: &String| {
            let element = graph.values.get(name).and_then(|value| value.element());
            let element = element.ok_or_else(|| {
                let of = provider.name.to_string_lossy();
                ProviderError::Unexpected(format!("{of}: value {name:?} of {:?} is no tensor", fused.proto.name))
            })?;
            Ok(Border {
                name: name.clone(),
                element,
            })
        };
        Ok(CompiledRegion {
            inputs: fused.proto.input.iter().map(border).collect::<Result<_>>()?,
            outputs: fused.proto.output.iter().map(border).collect::<Result<_>>()?,
            is_context: false,
        })
    }
}

/// # Safety
/// As ONNX Runtime calls it: `table` is a provider's.
unsafe fn of<'a>(table: *const OrtEp) -> &'a Provider {
    // SAFETY: the table is the provider's first field, and providers are only read.
    unsafe { &*table.cast::<Provider>() }
}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn get_name(table: *const OrtEp) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { of(table) }.name.as_ptr()
}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn get_capability(
    table: *mut OrtEp,
    graph: *const OrtGraph,
    support: *mut OrtEpGraphSupportInfo,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise.
    let provider = unsafe { of(table) };
    provider.api.guard(|| provider.capability(graph, support))
}

/// # Safety
/// As ONNX Runtime calls it: all arrays have `count` entries, those of nodes if contexts are asked for.
unsafe extern "C" fn compile(
    table: *mut OrtEp,
    graphs: *const *const OrtGraph,
    fused: *const *const OrtNode,
    count: usize,
    infos: *mut *mut OrtNodeComputeInfo,
    nodes: *mut *mut OrtNode,
) -> OrtStatusPtr {
    // SAFETY: the caller's promise.
    let provider = unsafe { of(table) };
    provider.api.guard(|| {
        let (mut kernels, mut made) = (Vec::new(), Vec::new());
        // SAFETY: the caller's promise.
        let (graphs, fused) = unsafe {
            (
                std::slice::from_raw_parts(graphs, count),
                std::slice::from_raw_parts(fused, count),
            )
        };
        let compiled = provider.compile(graphs, fused, &mut kernels, &mut made);
        if let Err(error) = compiled {
            for node in made {
                // SAFETY: the node was made here, and nobody has it.
                unsafe { (provider.api.ort.ReleaseNode)(node) };
            }
            return Err(error);
        }
        for (index, kernel) in kernels.into_iter().enumerate() {
            // SAFETY: there is room for `count` tables. Each goes back through `release_node_compute_infos`.
            unsafe { infos.add(index).write(Box::into_raw(Box::new(kernel)).cast()) };
        }
        for (index, node) in made.into_iter().enumerate() {
            // SAFETY: contexts were asked for, so there is room for `count` nodes, which become ONNX Runtime's.
            unsafe { nodes.add(index).write(node) };
        }
        Ok(())
    })
}

/// # Safety
/// As ONNX Runtime calls it: the tables are kernels that `compile` gave.
unsafe extern "C" fn release_node_compute_infos(table: *mut OrtEp, infos: *mut *mut OrtNodeComputeInfo, count: usize) {
    // SAFETY: the caller's promise.
    let provider = unsafe { of(table) };
    // A panic while something is freed has nowhere to go.
    let _ = provider.api.guard(|| {
        for index in 0..count {
            // SAFETY: each is a kernel that was made as a box, and is given back once.
            drop(unsafe { Box::from_raw((*infos.add(index)).cast::<Kernel>()) });
        }
        Ok(())
    });
}

/// # Safety
/// As ONNX Runtime calls it: there are `count` keys.
unsafe extern "C" fn set_dynamic_options(
    table: *mut OrtEp,
    keys: *const *const c_char,
    _: *const *const c_char,
    count: usize,
) -> OrtStatusPtr {
    if count == 0 {
        return ok();
    }
    // SAFETY: the caller's promise.
    let (provider, key) = unsafe { (of(table), text(*keys)) };
    provider.api.guard(|| {
        Err(ProviderError::Option {
            key,
            problem: OptionProblem::Dynamic,
        })
    })
}
