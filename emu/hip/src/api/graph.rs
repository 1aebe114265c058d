//! Stream capture and graphs.

use super::{BAD_HANDLE, INVALID, hip, stream_of, this_device};
use crate::graph::{Capture, Exec, Graph};
use crate::pointer::put;
use crate::queue::Action;
use crate::state::{Handle, Runtime};
use hip_sys::{
    hipError_t, hipGraph_t, hipGraphExec_t, hipGraphExecUpdateResult, hipGraphNode_t, hipStream_t,
    hipStreamCaptureMode, hipStreamCaptureStatus,
};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_ulonglong};
use std::sync::Arc;

hip! {
    /// Takes a stream's later work into a graph.
    fn hipStreamBeginCapture(runtime, stream: hipStream_t, mode: hipStreamCaptureMode) {
        let stream = stream_of(runtime, stream)?;
        let found = runtime.stream(stream)?;
        if mode.0 > 2 {
            return Err(INVALID);
        }
        if stream == runtime.devices[found.device].null_stream {
            return Err(hipError_t::hipErrorStreamCaptureUnsupported);
        }
        if found.capture.is_some() {
            return Err(hipError_t::hipErrorIllegalState);
        }
        let id = runtime.handle(Handle::Capture);
        let relaxed = mode == hipStreamCaptureMode::hipStreamCaptureModeRelaxed;
        let frontier = BTreeMap::from([(stream, Default::default())]);
        runtime.captures.insert(id, Capture { origin: stream, nodes: Vec::new(), frontier, relaxed, invalid: false });
        runtime.stream_mut(stream)?.capture = Some(id);
        Ok(())
    }

    /// Ends a capture and gives its graph; every stream that joined must have been waited for.
    fn hipStreamEndCapture(runtime, stream: hipStream_t, graph: *mut hipGraph_t) {
        if graph.is_null() {
            return Err(INVALID);
        }
        let stream = stream_of(runtime, stream)?;
        let id = runtime.stream(stream)?.capture.ok_or(hipError_t::hipErrorIllegalState)?;
        if runtime.captures.get(&id).is_some_and(|capture| capture.origin != stream) {
            return Err(hipError_t::hipErrorStreamCaptureUnmatched);
        }
        put(graph, std::ptr::null_mut())?;
        let capture = runtime.end(id).ok_or(hipError_t::hipErrorIllegalState)?;
        if capture.invalid {
            return Err(hipError_t::hipErrorStreamCaptureInvalidated);
        }
        if !capture.joined() {
            return Err(hipError_t::hipErrorStreamCaptureUnjoined);
        }
        let handle = runtime.handle(Handle::Graph);
        runtime.graphs.insert(handle, Graph { nodes: Arc::new(capture.nodes) });
        put(graph, handle as hipGraph_t)
    }

    /// Says whether a stream is captured.
    fn hipStreamIsCapturing(runtime, stream: hipStream_t, status: *mut hipStreamCaptureStatus) {
        let stream = stream_of(runtime, stream)?;
        let capture = runtime.stream(stream)?.capture.and_then(|id| runtime.captures.get(&id));
        put(status, match capture {
            None => hipStreamCaptureStatus::hipStreamCaptureStatusNone,
            Some(capture) if capture.invalid => hipStreamCaptureStatus::hipStreamCaptureStatusInvalidated,
            Some(_) => hipStreamCaptureStatus::hipStreamCaptureStatusActive,
        })
    }

    /// Ends a graph; what was made of it lives on.
    fn hipGraphDestroy(runtime, graph: hipGraph_t) {
        runtime.graphs.remove(&(graph as u64)).map(|_| ()).ok_or(INVALID)
    }

    /// Gives a graph's nodes, or how many there are where `nodes` is null.
    fn hipGraphGetNodes(runtime, graph: hipGraph_t, nodes: *mut hipGraphNode_t, count: *mut usize) {
        let graph = runtime.graphs.get(&(graph as u64)).ok_or(INVALID)?;
        if nodes.is_null() {
            return put(count, graph.nodes.len());
        }
        let room = crate::pointer::get(count.cast_const(), 0)?;
        for (index, node) in graph.nodes.iter().take(room).enumerate() {
            put(nodes.wrapping_add(index), node.handle as hipGraphNode_t)?;
        }
        for index in graph.nodes.len()..room {
            put(nodes.wrapping_add(index), std::ptr::null_mut())?;
        }
        put(count, graph.nodes.len().min(room))
    }

    /// Makes a graph ready to launch.
    fn hipGraphInstantiate(runtime, exec: *mut hipGraphExec_t, graph: hipGraph_t, error_node: *mut hipGraphNode_t, log: *mut c_char, size: usize) {
        if !error_node.is_null() {
            put(error_node, std::ptr::null_mut())?;
        }
        if !log.is_null() && size > 0 {
            put(log, 0)?;
        }
        instantiate(runtime, exec, graph)
    }

    /// Makes a graph ready to launch; the flags change nothing here.
    fn hipGraphInstantiateWithFlags(runtime, exec: *mut hipGraphExec_t, graph: hipGraph_t, _flags: c_ulonglong) {
        instantiate(runtime, exec, graph)
    }

    /// Queues a graph as one piece of work, its nodes in an order that their edges allow.
    fn hipGraphLaunch(runtime, exec: hipGraphExec_t, stream: hipStream_t) {
        let stream = stream_of(runtime, stream)?;
        let exec = runtime.execs.get(&(exec as u64)).ok_or(INVALID)?;
        if runtime.stream(stream)?.device != exec.device {
            return Err(BAD_HANDLE);
        }
        let nodes = exec.nodes.clone();
        runtime.submit(stream, Action::Graph(nodes), Vec::new())
    }

    /// Ends what was ready to launch; what is queued still runs.
    fn hipGraphExecDestroy(runtime, exec: hipGraphExec_t) {
        runtime.execs.remove(&(exec as u64)).map(|_| ()).ok_or(INVALID)
    }

    /// Takes another graph's arguments, where it has the same nodes and edges.
    fn hipGraphExecUpdate(runtime, exec: hipGraphExec_t, graph: hipGraph_t, error_node: *mut hipGraphNode_t, result: *mut hipGraphExecUpdateResult) {
        let nodes = runtime.graphs.get(&(graph as u64)).ok_or(INVALID)?.nodes.clone();
        let exec = runtime.execs.get_mut(&(exec as u64)).ok_or(INVALID)?;
        type R = hipGraphExecUpdateResult;
        let kind = |action: &Action| std::mem::discriminant(action);
        let (mut verdict, mut place) = (R::hipGraphExecUpdateSuccess, 0);
        if nodes.len() != exec.nodes.len() {
            verdict = R::hipGraphExecUpdateErrorTopologyChanged;
        } else {
            for (new, old) in nodes.iter().zip(exec.nodes.iter()) {
                if kind(&new.action) != kind(&old.action) {
                    (verdict, place) = (R::hipGraphExecUpdateErrorNodeTypeChanged, new.handle);
                    break;
                }
                if new.after != old.after {
                    (verdict, place) = (R::hipGraphExecUpdateErrorTopologyChanged, new.handle);
                    break;
                }
            }
        }
        put(error_node, place as hipGraphNode_t)?;
        put(result, verdict)?;
        if verdict != R::hipGraphExecUpdateSuccess {
            return Err(hipError_t::hipErrorGraphExecUpdateFailure);
        }
        exec.nodes = nodes;
        Ok(())
    }
}

fn instantiate(runtime: &mut Runtime, exec: *mut hipGraphExec_t, graph: hipGraph_t) -> crate::status::Status {
    if exec.is_null() {
        return Err(INVALID);
    }
    let device = this_device(runtime)?;
    let nodes = runtime.graphs.get(&(graph as u64)).ok_or(INVALID)?.nodes.clone();
    let id = runtime.handle(Handle::GraphExec);
    runtime.execs.insert(id, Exec { device, nodes });
    put(exec, id as hipGraphExec_t)
}

impl Runtime {
    /// Ends a capture: its streams work as before.
    pub(super) fn end(&mut self, capture: u64) -> Option<Capture> {
        for stream in self
            .streams
            .values_mut()
            .filter(|stream| stream.capture == Some(capture))
        {
            stream.capture = None;
        }
        self.captures.remove(&capture)
    }
}
