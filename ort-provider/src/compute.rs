//! Runs a compiled region: inputs as ONNX Runtime has them, outputs straight into its memory.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use graphc::driver::evaluator;
use graphc::frontend::onnx::proto::{ValueInfoProto, type_proto};
use graphc::frontend::onnx::tensor::element_type;
use graphc::frontend::onnx::{GivenEvaluator, GivenInput, ImportOptions, InputDim, Model, import_model};
use graphc::ir::graph::BindError;
use graphc::ir::{DType, HostTensor, Program, Storage};
use graphc::runtime::{Executable, InputBytes, InputError, RuntimeError};
use graphc::{Session, SessionOptions};
use indexmap::IndexMap;
use ort_sys::{ONNXTensorElementDataType, OrtKernelContext, OrtStatusPtr, OrtValue};
use smallvec::SmallVec;

use crate::abi::{API_VERSION, OrtNodeComputeContext, OrtNodeComputeInfo};
use crate::api::{Api, Logger, ok};
use crate::counters::{COUNTERS, Count};
use crate::error::{ProviderError, Result};

/// Compilations for given inputs that a region keeps.
const KEPT: usize = 8;

const UINT16: i32 = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16 as i32;
const UINT32: i32 = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32 as i32;
const UINT64: i32 = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64 as i32;

/// Whether tensors of an ONNX element type can be given to, or taken from, a port: as they are, or each number widened.
pub fn is_convertible(element: i32, dtype: DType) -> bool {
    match (element, dtype) {
        (UINT16, DType::I32) | (UINT32 | UINT64, DType::I64) => true,
        _ => element_type(element).and_then(|element| element.dtype()) == Some(dtype) && !is_widened(element),
    }
}

/// Whether graphc computes an ONNX element type in a wider one.
fn is_widened(element: i32) -> bool {
    matches!(element, UINT16 | UINT32 | UINT64)
}

/// The model and options of a region, for compiling it again.
pub struct Source {
    pub model: Model,
    pub import: ImportOptions,
    pub session: SessionOptions,
}

impl Source {
    /// Compiles the region with its sizes left open.
    ///
    /// # Errors
    /// As the importer and the compiler.
    pub fn compile(&self) -> Result<Session> {
        let graph = import_model(&self.model, &self.import)?;
        let session = Session::compile(graph, &self.session)?;
        COUNTERS.add(Count::Compiled);
        Ok(session)
    }

    /// Compiles the region for these inputs alone.
    fn compile_for(&self, inputs: &IndexMap<String, HostTensor>) -> Result<Session> {
        let evaluate = evaluator();
        let mut import = self.import.clone();
        import.evaluator = GivenEvaluator::new(move |graph, inputs| evaluate(graph, inputs));
        let given = inputs
            .iter()
            .map(|(name, tensor)| (name.clone(), GivenInput::of(tensor)));
        import.given.extend(given);
        // A run may give another rank than was declared: ONNX Runtime lets conditions of loops be so.
        for port in &self.model.graph.input {
            let sizes = inputs
                .get(&port.name)
                .map(|tensor| tensor.shape.iter().map(|size| *size as i64));
            if let (Some(sizes), Some(type_proto::Value::TensorType(tensor))) = (sizes, declared(port))
                && tensor
                    .shape
                    .as_ref()
                    .is_some_and(|shape| shape.dim.len() != sizes.len())
            {
                import
                    .shapes
                    .insert(port.name.clone(), sizes.map(InputDim::Size).collect());
            }
        }
        let session = Session::compile(import_model(&self.model, &import)?, &self.session)?;
        COUNTERS.add(Count::Specialised);
        Ok(session)
    }
}

fn declared(port: &ValueInfoProto) -> Option<&type_proto::Value> {
    port.r#type.as_ref()?.value.as_ref()
}

/// A value at the border of a region: its name, and the code of its element type in ONNX.
#[derive(Clone, Debug)]
pub struct Border {
    pub name: String,
    pub element: i32,
}

/// A session with the places of its ports among a region's inputs and outputs.
struct Compiled {
    session: Session,
    /// For each input of the plan, the region's.
    inputs: Vec<usize>,
    /// For each result of the plan, the region's output.
    outputs: Vec<usize>,
}

/// A region as ONNX Runtime runs it. It is given away as a box whose address is the table's.
#[repr(C)]
pub struct Kernel {
    table: OrtNodeComputeInfo,
    api: Api,
    logger: Logger,
    name: String,
    inputs: Vec<Border>,
    outputs: Vec<Border>,
    open: Compiled,
    /// None where it cannot or must not be compiled again.
    source: Option<Source>,
    /// Compilations for given inputs, the newest first.
    given: Mutex<Vec<Arc<Compiled>>>,
    /// Held by the thread that compiles.
    compiling: Mutex<()>,
}

/// An input of a run.
struct Input {
    shape: SmallVec<[usize; 6]>,
    data: *const u8,
    bytes: usize,
    dtype: DType,
    /// Its numbers in a wider type.
    widened: Option<Vec<u8>>,
}

impl Input {
    fn bytes(&self) -> &[u8] {
        match &self.widened {
            Some(bytes) => bytes,
            None if self.bytes == 0 => &[],
            // SAFETY: ONNX Runtime's tensor has that many bytes, and nobody writes them during the run.
            None => unsafe { std::slice::from_raw_parts(self.data, self.bytes) },
        }
    }
}

impl Kernel {
    /// Makes a kernel of a session whose ports have the names of the region's inputs and outputs.
    ///
    /// # Errors
    /// A port that the region does not have, or an output that no port gives.
    pub fn new(
        api: Api,
        logger: Logger,
        name: String,
        (inputs, outputs): (Vec<Border>, Vec<Border>),
        session: Session,
        source: Option<Source>,
    ) -> Result<Kernel> {
        let open = Compiled::new(session, &inputs, &outputs)?;
        Ok(Kernel {
            table: OrtNodeComputeInfo {
                ort_version_supported: API_VERSION,
                create_state,
                compute,
                release_state,
            },
            api,
            logger,
            name,
            inputs,
            outputs,
            open,
            source,
            given: Mutex::default(),
            compiling: Mutex::default(),
        })
    }

    /// The compiled program.
    ///
    /// # Errors
    /// A session without one.
    pub fn program(&self) -> Result<&Arc<Program>> {
        Ok(self.open.executable()?.program())
    }

    fn run(&self, context: *mut OrtKernelContext) -> Result<()> {
        COUNTERS.add(Count::Runs);
        let inputs = self.read(context)?;
        let reason = match self.open.run(self, context, &inputs) {
            Err(error) if is_of_sizes(&error) && self.source.is_some() => error,
            result => return result,
        };
        let known = self.given().clone();
        if let Some(result) = self.run_known(&known, context, &inputs) {
            return result;
        }
        // One thread compiles, and the others look at what it made.
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = self.given().clone();
        new.retain(|made| !known.iter().any(|known| Arc::ptr_eq(made, known)));
        if let Some(result) = self.run_known(&new, context, &inputs) {
            return result;
        }
        let compiled = Arc::new(self.compile_for(&inputs, &reason)?);
        let result = compiled.run(self, context, &inputs);
        let mut given = self.given();
        given.insert(0, compiled);
        given.truncate(KEPT);
        result
    }

    /// Runs on the first of some compilations that takes the inputs.
    fn run_known(
        &self,
        known: &[Arc<Compiled>],
        context: *mut OrtKernelContext,
        inputs: &[Input],
    ) -> Option<Result<()>> {
        let mut runs = known.iter().map(|compiled| compiled.run(self, context, inputs));
        runs.find(|result| !matches!(result, Err(error) if is_of_sizes(error)))
    }

    fn given(&self) -> MutexGuard<'_, Vec<Arc<Compiled>>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile_for(&self, inputs: &[Input], reason: &ProviderError) -> Result<Compiled> {
        let Some(source) = &self.source else {
            return Err(ProviderError::Unexpected(
                "there is nothing to compile again".to_owned(),
            ));
        };
        let mut tensors = IndexMap::new();
        for (border, input) in self.inputs.iter().zip(inputs) {
            let bytes = Storage::new(input.bytes().to_vec());
            let tensor = HostTensor::new(input.dtype, input.shape.to_vec(), bytes);
            let tensor = tensor.map_err(|error| ProviderError::Unexpected(error.to_string()))?;
            tensors.insert(border.name.clone(), tensor);
        }
        let name = &self.name;
        self.logger.warn(&format!(
            "graphc: {name} is compiled for the inputs of one run alone: {reason}"
        ));
        let session = source.compile_for(&tensors).map_err(|error| ProviderError::Again {
            open: reason.to_string(),
            error: Box::new(error),
        })?;
        Compiled::new(session, &self.inputs, &self.outputs)
    }

    /// The inputs of a run.
    fn read(&self, context: *mut OrtKernelContext) -> Result<SmallVec<[Input; 8]>> {
        let read = |(index, border): (usize, &Border)| {
            let mut value = ptr::null();
            // SAFETY: the context is the run's.
            let status = unsafe { (self.api.ort.KernelContext_GetInput)(context, index, &mut value) };
            self.api.check("KernelContext_GetInput", status)?;
            if value.is_null() {
                let why = format!("{}: input {:?} is not given", self.name, border.name);
                return Err(ProviderError::Unexpected(why));
            }
            self.read_input(value, border)
        };
        self.inputs.iter().enumerate().map(read).collect()
    }

    fn read_input(&self, value: *const OrtValue, border: &Border) -> Result<Input> {
        let ort = self.api.ort;
        let (mut info, mut rank, mut data) = (ptr::null_mut(), 0usize, ptr::null());
        let mut dims: SmallVec<[i64; 6]> = SmallVec::new();
        // SAFETY: the value is the run's; its description is ours, and is freed once.
        unsafe {
            self.api
                .check("GetTensorTypeAndShape", (ort.GetTensorTypeAndShape)(value, &mut info))?;
            let mut status = (ort.GetDimensionsCount)(info, &mut rank);
            if status.0.is_null() {
                dims.resize(rank, 0);
                status = (ort.GetDimensions)(info, dims.as_mut_ptr(), rank);
            }
            (ort.ReleaseTensorTypeAndShapeInfo)(info);
            self.api.check("GetDimensions", status)?;
            self.api.check("GetTensorData", (ort.GetTensorData)(value, &mut data))?;
        }
        let shape: SmallVec<[usize; 6]> = dims.iter().map(|d| usize::try_from(*d).unwrap_or(0)).collect();
        let elements: usize = shape.iter().product();
        let dtype = element_type(border.element).and_then(|element| element.dtype());
        let dtype = dtype.ok_or_else(|| {
            ProviderError::Unexpected(format!("input {:?} has element type {}", border.name, border.element))
        })?;
        let width = match border.element {
            UINT16 => 2,
            UINT32 => 4,
            UINT64 => 8,
            _ => 0,
        };
        let mut input = Input {
            bytes: if width > 0 {
                elements * width
            } else {
                dtype.bytes_for(elements)
            },
            shape,
            data: data.cast(),
            dtype,
            widened: None,
        };
        if width > 0 {
            input.widened = Some(widen(border, input.bytes())?);
        }
        Ok(input)
    }
}

impl Compiled {
    fn new(session: Session, inputs: &[Border], outputs: &[Border]) -> Result<Compiled> {
        let place = |borders: &[Border], name: &str, what: &str| {
            let place = borders.iter().position(|border| border.name == name);
            place.ok_or_else(|| {
                ProviderError::Unexpected(format!("the compiled region has an {what} {name:?} of its own"))
            })
        };
        let mut compiled = Compiled {
            session,
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let plan = compiled.executable()?.plan();
        let of_inputs: Result<_> = plan
            .inputs
            .iter()
            .map(|port| place(inputs, &port.name, "input"))
            .collect();
        let of_outputs: Result<_> = plan
            .results()
            .iter()
            .map(|port| place(outputs, &port.name, "output"))
            .collect();
        let types = plan.results().iter().map(|port| (&port.name, port.ty.dtype));
        for (name, dtype) in types {
            let fits = outputs
                .iter()
                .any(|b| b.name == *name && is_convertible(b.element, dtype));
            if !fits {
                return Err(ProviderError::Unexpected(format!("output {name:?} would be {dtype}")));
            }
        }
        (compiled.inputs, compiled.outputs) = (of_inputs?, of_outputs?);
        if let Some(missing) = (0..outputs.len()).find(|output| !compiled.outputs.contains(output)) {
            let name = &outputs[missing].name;
            return Err(ProviderError::Unexpected(format!(
                "the compiled region does not give output {name:?}"
            )));
        }
        Ok(compiled)
    }

    fn executable(&self) -> Result<&Executable> {
        let executable = self.session.executable();
        executable.ok_or_else(|| ProviderError::Unexpected("the session has no program".to_owned()))
    }

    fn run(&self, kernel: &Kernel, context: *mut OrtKernelContext, inputs: &[Input]) -> Result<()> {
        let executable = self.executable()?;
        let plan = executable.plan();
        let described: SmallVec<[InputBytes<'_>; 8]> = self
            .inputs
            .iter()
            .map(|input| {
                let input = &inputs[*input];
                InputBytes {
                    dtype: input.dtype,
                    shape: &input.shape,
                    bytes: input.bytes().len(),
                }
            })
            .collect();
        let bindings = executable.bind_bytes(&described)?;
        let given: SmallVec<[&[u8]; 8]> = self.inputs.iter().map(|input| inputs[*input].bytes()).collect();
        let mut rooms: SmallVec<[Room; 8]> = SmallVec::new();
        for (port, output) in plan.results().iter().zip(&self.outputs) {
            let dims = port.ty.shape.eval(&bindings).map_err(graphc::Error::from)?;
            let bytes = port.ty.bytes().eval(&bindings).map_err(graphc::Error::from)?;
            let bytes = usize::try_from(bytes).unwrap_or(0);
            let element = kernel.outputs[*output].element;
            let data = kernel.output(context, *output, &dims)?;
            let is_apart = data.is_null() || is_widened(element);
            rooms.push(Room {
                data,
                bytes,
                element,
                apart: is_apart.then(|| vec![0; bytes]),
            });
        }
        let mut results: SmallVec<[&mut [u8]; 8]> = rooms.iter_mut().map(Room::as_mut).collect();
        executable.run_bytes(&bindings, &given, &mut results)?;
        drop(results);
        rooms.iter().for_each(Room::finish);
        Ok(())
    }
}

/// Where an output of a run goes.
struct Room {
    /// ONNX Runtime's memory; null where nobody asked for the output.
    data: *mut u8,
    bytes: usize,
    element: i32,
    /// Memory of its own, where the output is computed in a wider type or not asked for.
    apart: Option<Vec<u8>>,
}

impl Room {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.apart {
            Some(apart) => apart,
            None if self.bytes == 0 => &mut [],
            // SAFETY: the tensor was made with these sizes, and is the run's alone; no two outputs are one.
            None => unsafe { std::slice::from_raw_parts_mut(self.data, self.bytes) },
        }
    }

    /// Gives ONNX Runtime what was computed in a wider type.
    fn finish(&self) {
        if let (Some(apart), false) = (&self.apart, self.data.is_null()) {
            let narrow = narrow(self.element, apart);
            // SAFETY: the tensor has as many elements, each of the narrow type.
            unsafe { ptr::copy_nonoverlapping(narrow.as_ptr(), self.data, narrow.len()) };
        }
    }
}

impl Kernel {
    /// Makes an output of a run and returns where it is.
    fn output(&self, context: *mut OrtKernelContext, index: usize, dims: &[i64]) -> Result<*mut u8> {
        let (mut value, mut data): (*mut OrtValue, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the context is the run's, and the dims are read.
        unsafe {
            let status = (self.api.ort.KernelContext_GetOutput)(context, index, dims.as_ptr(), dims.len(), &mut value);
            self.api.check("KernelContext_GetOutput", status)?;
            if value.is_null() {
                return Ok(ptr::null_mut());
            }
            let status = (self.api.ort.GetTensorMutableData)(value, &mut data);
            self.api.check("GetTensorMutableData", status)?;
        }
        Ok(data.cast())
    }
}

/// Whether shapes or numbers of a run's inputs are at fault.
fn is_of_sizes(error: &ProviderError) -> bool {
    let ProviderError::Graphc(error) = error else {
        return false;
    };
    let rank = |error: &RuntimeError| {
        let RuntimeError::Input { error, .. } = error else {
            return false;
        };
        matches!(error, InputError::Shape(BindError::Rank { .. }))
    };
    error.is_of_sizes() || matches!(error, graphc::Error::Runtime(error) if rank(error))
}

/// Numbers of an unsigned type as graphc computes them.
fn widen(border: &Border, bytes: &[u8]) -> Result<Vec<u8>> {
    let large = || {
        let why = format!(
            "input {:?} has a number of 2^63 or more, which graphc does not compute with",
            border.name
        );
        ProviderError::Unexpected(why)
    };
    Ok(match border.element {
        UINT16 => {
            let numbers = bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| i32::from(u16::from_le_bytes(*b)));
            numbers.flat_map(i32::to_le_bytes).collect()
        }
        UINT32 => {
            let numbers = bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| i64::from(u32::from_le_bytes(*b)));
            numbers.flat_map(i64::to_le_bytes).collect()
        }
        _ if bytes.as_chunks::<8>().0.iter().any(|b| b[7] >= 0x80) => return Err(large()),
        _ => bytes.to_vec(),
    })
}

/// The low parts of numbers: those of an unsigned type that were computed in a wider one.
fn narrow(element: i32, bytes: &[u8]) -> Vec<u8> {
    let (wide, width) = match element {
        UINT16 => (4, 2),
        UINT32 => (8, 4),
        _ => return bytes.to_vec(),
    };
    bytes
        .chunks_exact(wide)
        .flat_map(|number| &number[..width])
        .copied()
        .collect()
}

/// # Safety
/// As ONNX Runtime calls it: `state` can be written.
unsafe extern "C" fn create_state(
    _: *mut OrtNodeComputeInfo,
    _: *mut OrtNodeComputeContext,
    state: *mut *mut c_void,
) -> OrtStatusPtr {
    // The kernel itself is all the state there is.
    // SAFETY: the caller's promise.
    unsafe { state.write(ptr::null_mut()) };
    ok()
}

/// # Safety
/// As ONNX Runtime calls it: `table` is a kernel's, and `context` a run's.
unsafe extern "C" fn compute(
    table: *mut OrtNodeComputeInfo,
    _: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: the table is the kernel's first field, and kernels are only read.
    let kernel = unsafe { &*table.cast::<Kernel>() };
    kernel.api.guard(|| kernel.run(context))
}

/// # Safety
/// As ONNX Runtime calls it.
unsafe extern "C" fn release_state(_: *mut OrtNodeComputeInfo, _: *mut c_void) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_numbers_are_widened_and_come_back() {
        for (element, bytes) in [
            (UINT16, vec![0xff, 0xff, 1, 0]),
            (UINT32, vec![0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0]),
            (UINT64, vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        ] {
            let border = Border {
                name: "x".to_owned(),
                element,
            };
            let wide = widen(&border, &bytes).expect("it fits");
            assert_eq!(narrow(element, &wide), bytes);
        }
        let border = Border {
            name: "x".to_owned(),
            element: UINT64,
        };
        assert!(widen(&border, &[0xff; 8]).is_err());
        let minus_one = (-1i32).to_le_bytes();
        assert_eq!(narrow(UINT16, &minus_one), [0xff, 0xff]);
    }

    #[test]
    fn ports_take_their_own_type_or_a_wider_one() {
        assert!(is_convertible(1, DType::F32) && is_convertible(UINT16, DType::I32));
        assert!(!is_convertible(1, DType::F16) && !is_convertible(UINT16, DType::I64) && !is_convertible(8, DType::U8));
    }
}
