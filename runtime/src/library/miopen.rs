//! MIOpen: convolutions by a solution that was chosen (`miopenConvolutionForwardImmediate`).
//!
//! By default that is the one which MIOpen's databases and heuristics rank first, without timing anything: nothing is
//! measured behind the caller's back, and the same sizes get the same solution. On request MIOpen's find stage is asked
//! first, in one of its modes; what it finds is in the databases then, whose first is of the algorithm that it names. A
//! call may name a solution ([`Algorithm`]): where MIOpen has that for the sizes, it goes before all others, and
//! nothing is searched for. Kernels are compiled when a context is first fitted to the sizes, and kept by MIOpen where
//! its own settings say.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dylib::Search;
use ir::dim::Bindings;
use ir::library::Algorithm;
use ir::op::{Conv as ConvOp, Layout};
use ir::{DType, TensorType};
use miopen_sys::{
    LoadError, MiopenFindLibrary, MiopenLibrary, miopenConvAlgoPerf_t, miopenConvAlgoPerf_t__bindgen_ty_1,
    miopenConvFwdAlgorithm_t, miopenConvSolution_t, miopenConvolutionDescriptor_t,
    miopenConvolutionFindMode_t as FindMode, miopenConvolutionMode_t, miopenDataType_t, miopenHandle_t, miopenStatus_t,
    miopenTensorDescriptor_t,
};

use super::{Allocate, Content, Opened};
use crate::error::RuntimeError;
use crate::gpu::driver::RawStream;
use crate::gpu::handles::Gpu;
use crate::miopen::{MiopenFind, MiopenOptions};

/// Solutions of a convolution that are offered as algorithms. Each is compiled when it is offered.
const OFFERED: usize = 8;

/// The library, as one program has it.
pub(crate) struct Miopen {
    opened: Opened<MiopenLibrary>,
    /// What the device's driver says of itself.
    driver: String,
    /// None where nothing is searched for.
    find: Option<Find>,
}

/// MIOpen's find stage in one mode.
struct Find {
    api: MiopenFindLibrary,
    mode: FindMode,
    /// What was found, for all handles: a search may end otherwise the next time.
    solutions: Mutex<HashMap<Conv, u64>>,
}

/// A mode's number in MIOpen's header; None where nothing is searched for.
const fn find_mode(find: MiopenFind) -> Option<FindMode> {
    match find {
        MiopenFind::Immediate => None,
        MiopenFind::Normal => Some(FindMode::miopenConvolutionFindModeNormal),
        MiopenFind::Fast => Some(FindMode::miopenConvolutionFindModeFast),
        MiopenFind::Hybrid => Some(FindMode::miopenConvolutionFindModeHybrid),
        MiopenFind::DynamicHybrid => Some(FindMode::miopenConvolutionFindModeDynamicHybrid),
    }
}

/// The type of elements as MIOpen has it.
pub(super) const fn datatype(dtype: DType) -> miopenDataType_t {
    match dtype {
        DType::F16 => miopenDataType_t::miopenHalf,
        DType::BF16 => miopenDataType_t::miopenBFloat16,
        DType::I8 => miopenDataType_t::miopenInt8,
        DType::I32 => miopenDataType_t::miopenInt32,
        _ => miopenDataType_t::miopenFloat,
    }
}

impl Miopen {
    /// Opens MIOpen. A GPU must have been found.
    pub fn open(search: &Search, options: &MiopenOptions, at: &str, gpu: &Gpu) -> Result<Miopen, RuntimeError> {
        let refuse = |reason: String| RuntimeError::MiopenDatabase {
            folder: options.user_database.clone().unwrap_or_default(),
            reason,
        };
        let folder = options.user_database.as_ref().map(|folder| {
            // MIOpen says only in its log that it cannot write there.
            std::fs::create_dir_all(folder).and_then(|()| std::fs::canonicalize(folder))
        });
        let folder = folder.transpose().map_err(|error| refuse(error.to_string()))?;
        let loaded = match miopen_sys::load_with(search, folder.as_deref()) {
            Ok(loaded) => Ok(loaded),
            Err(LoadError::NotFound(error)) => Err(error),
            Err(error @ LoadError::LoadedWith(_)) => {
                return Err(refuse(format!(
                    "{error}, and reads it once in a process; give the folder with the first program that calls MIOpen"
                )));
            }
        };
        let opened = Opened::new(loaded, "MIOpen", "convolutions", at, &gpu.name)?;
        let find = find_mode(options.find).map(|mode| match miopen_sys::load_find(&opened.api.path) {
            Ok(api) => Ok(Find {
                api,
                mode,
                solutions: Mutex::default(),
            }),
            Err(error) => Err(RuntimeError::Unsupported {
                what: format!(
                    "MIOpen's find mode {}, of which this MIOpen knows nothing ({error}),",
                    options.find
                ),
                at: format!("{at}; without a mode it chooses as ever"),
            }),
        });
        Ok(Miopen {
            find: find.transpose()?,
            driver: gpu.at(at, gpu.driver.describe(gpu.ordinal))?.driver,
            opened,
        })
    }

    pub(super) fn api(&self) -> &MiopenLibrary {
        &self.opened.api
    }

    pub(super) fn check(&self, call: &str, status: miopenStatus_t, at: &str) -> Result<(), RuntimeError> {
        if status == miopenStatus_t::miopenStatusSuccess {
            return Ok(());
        }
        // SAFETY: the function gives a static string for every number.
        let text = unsafe { self.api().miopenGetErrorString(status) };
        Err(self.opened.failed(call, status.0, text, at.to_owned()))
    }
}

/// A tensor as MIOpen describes it: sizes in the order N, C, H, W (filters O, I, H, W) and the stride of each in
/// elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Tensor {
    sizes: [c_int; 4],
    strides: [c_int; 4],
}

impl Tensor {
    fn bytes(&self, dtype: DType) -> usize {
        let elements = self.sizes.iter().map(|size| *size as usize).product();
        dtype.bytes_for(elements)
    }
}

/// A convolution at some sizes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Conv {
    dtype: DType,
    /// Of the result.
    out: DType,
    input: Tensor,
    filter: Tensor,
    result: Tensor,
    pads: [c_int; 2],
    strides: [c_int; 2],
    dilations: [c_int; 2],
    groups: c_int,
    /// The solution that the plan asks for.
    algorithm: Option<Algorithm>,
}

impl Conv {
    /// The convolution by this solution.
    pub fn by(self, algorithm: Option<&Algorithm>) -> Conv {
        Conv {
            algorithm: algorithm.cloned(),
            ..self
        }
    }

    /// Restates a convolution at some sizes, by no solution in particular; None where the result has no elements.
    ///
    /// # Errors
    /// What MIOpen is not asked for here: other types, ranks, one-sided padding, transposed convolutions.
    pub fn new(
        conv: &ConvOp,
        input: &TensorType,
        filter: &TensorType,
        result: &TensorType,
        bindings: &Bindings,
        at: &str,
    ) -> Result<Option<Conv>, RuntimeError> {
        let refuse = |what: String| RuntimeError::Unsupported {
            what: format!("miopen_conv of {what}"),
            at: format!("{at}; compile with --no-libraries, and the kernel is generated instead"),
        };
        let out = match input.dtype {
            DType::F32 | DType::F16 | DType::BF16 => Some(input.dtype),
            DType::I8 => Some(DType::I32),
            _ => None,
        };
        if filter.dtype != input.dtype || Some(result.dtype) != out || conv.pad_value != 0 {
            return Err(refuse(format!("{input} and {filter} to {result}")));
        }
        let window = &conv.window;
        if conv.transposed.is_some() || window.pad_low != window.pad_high {
            return Err(refuse(format!("a window with {window:?}")));
        }
        let small = |size: i64| c_int::try_from(size).map_err(|_| refuse(format!("a size of {size}")));
        let pair = |list: &[i64]| -> Result<[c_int; 2], RuntimeError> {
            match list {
                [h, w] => Ok([small(*h)?, small(*w)?]),
                _ => Err(refuse(format!("{} spatial axes", list.len()))),
            }
        };
        let tensor = |ty: &TensorType| -> Result<Tensor, RuntimeError> {
            let shape = ty.shape.eval(bindings)?;
            let &[a, b, c, d] = shape.as_slice() else {
                return Err(refuse(ty.to_string()));
            };
            // Sizes in MIOpen's order, with the strides that the layout gives them.
            let (sizes, strides) = match conv.layout {
                Layout::ChannelsFirst => ([a, b, c, d], [b * c * d, c * d, d, 1]),
                Layout::ChannelsLast => ([a, d, b, c], [b * c * d, 1, c * d, d]),
            };
            let word = |four: [i64; 4]| -> Result<[c_int; 4], RuntimeError> {
                Ok([small(four[0])?, small(four[1])?, small(four[2])?, small(four[3])?])
            };
            Ok(Tensor {
                sizes: word(sizes)?,
                strides: word(strides)?,
            })
        };
        let made = Conv {
            dtype: input.dtype,
            out: result.dtype,
            input: tensor(input)?,
            filter: tensor(filter)?,
            result: tensor(result)?,
            pads: pair(&window.pad_low)?,
            strides: pair(&window.strides)?,
            dilations: pair(&window.dilations)?,
            groups: small(conv.groups)?,
            algorithm: None,
        };
        Ok((!made.result.sizes.contains(&0)).then_some(made))
    }
}

/// A handle, which serves one run at a time, and the convolutions that were made ready on it.
pub(crate) struct Handle {
    ready: HashMap<Conv, Ready>,
    library: Arc<Miopen>,
    raw: miopenHandle_t,
    /// Which library on which driver, as algorithms say it: once it was asked.
    version: Option<String>,
}

// SAFETY: a handle may be used by any thread, one at a time; whoever runs has its context to itself.
unsafe impl Send for Handle {}

/// A convolution with its solution chosen and compiled.
struct Ready {
    descriptors: Descriptors,
    solution: u64,
    workspace: usize,
}

impl Handle {
    /// Makes a handle for the device that the thread has entered.
    pub fn new(library: &Arc<Miopen>) -> Result<Handle, RuntimeError> {
        let mut raw = null_mut();
        // SAFETY: a place for the result; there is a device.
        let status = unsafe { library.api().miopenCreate(&mut raw) };
        library.check("miopenCreate", status, "loading the program")?;
        Ok(Handle {
            ready: HashMap::new(),
            library: library.clone(),
            raw,
            version: None,
        })
    }

    /// The handle and its library.
    pub(super) fn raw(&self) -> (&Arc<Miopen>, miopenHandle_t) {
        (&self.library, self.raw)
    }

    /// Chooses and compiles a solution, unless that was done; returns the bytes of workspace that it takes.
    pub fn ready(
        &mut self,
        conv: &Conv,
        stream: RawStream,
        allocate: &mut Allocate<'_>,
        at: &str,
    ) -> Result<usize, RuntimeError> {
        if let Some(ready) = self.ready.get(conv) {
            return Ok(ready.workspace);
        }
        self.set_stream(stream, at)?;
        let library = self.library.clone();
        let api = library.api();
        let descriptors = Descriptors::new(&library, conv, at)?;
        let [x, w, y] = descriptors.tensors;
        let c = descriptors.convolution;
        let asked = match self.asked(conv, at)? {
            Some(id) => (self.solutions(&descriptors, at)?.iter())
                .any(|solution| solution.solution_id == id)
                .then_some(First::Solution(id)),
            None => None,
        };
        // Others that would search for the same wait for what is found.
        let mut found = library.find.as_ref().filter(|_| asked.is_none()).map(Find::solutions);
        let alike = conv.clone().by(None);
        let first = match (&library.find, &found) {
            (Some(find), Some(found)) => match found.get(&alike) {
                Some(id) => Some(First::Solution(*id)),
                None => Some(First::Algorithm(self.search(find, conv, &descriptors, allocate, at)?)),
            },
            _ => asked,
        };
        let mut solutions = self.solutions(&descriptors, at)?;
        // They come ranked, those of what was found before all others.
        if let Some(first) = first {
            solutions.sort_by_key(|solution| !first.is(solution));
        }
        // One whose kernel does not compile here makes room for the next.
        let mut refused = None;
        for solution in solutions {
            let id = solution.solution_id;
            // SAFETY: as above.
            let status = unsafe { api.miopenConvolutionForwardCompileSolution(self.raw, w, x, c, y, id) };
            match library.check("miopenConvolutionForwardCompileSolution", status, at) {
                Ok(()) => {
                    let mut workspace = 0;
                    // SAFETY: as above; a place for the result.
                    let status = unsafe {
                        api.miopenConvolutionForwardGetSolutionWorkspaceSize(self.raw, w, x, c, y, id, &mut workspace)
                    };
                    library.check("miopenConvolutionForwardGetSolutionWorkspaceSize", status, at)?;
                    let ready = Ready {
                        descriptors,
                        solution: id,
                        workspace,
                    };
                    if let Some(found) = &mut found {
                        found.insert(alike, id);
                    }
                    self.ready.insert(conv.clone(), ready);
                    return Ok(workspace);
                }
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| RuntimeError::Unsupported {
            what: "miopen_conv: MIOpen has no solution for this convolution".into(),
            at: format!("{at}; compile with --no-libraries, and the kernel is generated instead"),
        }))
    }

    /// Lists MIOpen's solutions of a convolution as they are ranked.
    fn solutions(&self, descriptors: &Descriptors, at: &str) -> Result<Vec<miopenConvSolution_t>, RuntimeError> {
        let (library, api) = (&self.library, self.library.api());
        let [x, w, y] = descriptors.tensors;
        let c = descriptors.convolution;
        let mut count = 0;
        // SAFETY: handle and descriptors are alive; a place for the result.
        let status = unsafe { api.miopenConvolutionForwardGetSolutionCount(self.raw, w, x, c, y, &mut count) };
        library.check("miopenConvolutionForwardGetSolutionCount", status, at)?;
        let none = miopenConvSolution_t {
            time: 0.0,
            workspace_size: 0,
            solution_id: 0,
            algorithm: miopen_sys::miopenConvAlgorithm_t(0),
        };
        let mut solutions = vec![none; count.max(1)];
        let mut filled = 0;
        // SAFETY: as above, and room for as many solutions as are said.
        let status = unsafe {
            api.miopenConvolutionForwardGetSolution(
                self.raw,
                w,
                x,
                c,
                y,
                solutions.len(),
                &mut filled,
                solutions.as_mut_ptr(),
            )
        };
        library.check("miopenConvolutionForwardGetSolution", status, at)?;
        solutions.truncate(filled);
        Ok(solutions)
    }

    /// Says of which library and driver this handle's solutions are.
    fn version(&mut self, at: &str) -> Result<String, RuntimeError> {
        if let Some(known) = &self.version {
            return Ok(known.clone());
        }
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: places for the results.
        let status = unsafe { self.library.api().miopenGetVersion(&mut major, &mut minor, &mut patch) };
        self.library.check("miopenGetVersion", status, at)?;
        let version = format!("MIOpen {major}.{minor}.{patch} on {}", self.library.driver);
        self.version = Some(version.clone());
        Ok(version)
    }

    /// The number of the solution that a convolution asks for, where it is one of this version on this driver.
    fn asked(&mut self, conv: &Conv, at: &str) -> Result<Option<u64>, RuntimeError> {
        let Some(algorithm) = &conv.algorithm else {
            return Ok(None);
        };
        let number: Option<[u8; 8]> = algorithm.words.as_slice().try_into().ok();
        Ok((self.version(at)? == algorithm.of)
            .then_some(number.map(u64::from_le_bytes))
            .flatten())
    }

    /// Lists solutions of a convolution that compile here, the one first that serves it where it was made
    /// [`ready`](Handle::ready), and is ranked first elsewhere.
    pub fn algorithms(&mut self, conv: &Conv, at: &str) -> Result<Vec<Algorithm>, RuntimeError> {
        let of = self.version(at)?;
        let descriptors = Descriptors::new(&self.library, conv, at)?;
        let mut solutions = self.solutions(&descriptors, at)?;
        if let Some(ready) = self.ready.get(conv) {
            solutions.sort_by_key(|solution| solution.solution_id != ready.solution);
        }
        let [x, w, y] = descriptors.tensors;
        let c = descriptors.convolution;
        let compiles = |solution: &miopenConvSolution_t| {
            let api = self.library.api();
            // SAFETY: handle and descriptors are alive.
            let status =
                unsafe { api.miopenConvolutionForwardCompileSolution(self.raw, w, x, c, y, solution.solution_id) };
            status == miopenStatus_t::miopenStatusSuccess
        };
        let named = |solution: miopenConvSolution_t| Algorithm {
            of: of.clone(),
            words: solution.solution_id.to_le_bytes().to_vec(),
        };
        let offered = solutions.into_iter().filter(compiles).take(OFFERED);
        Ok(offered.map(named).collect())
    }

    /// Asks MIOpen's find stage for the algorithm of a convolution.
    fn search(
        &self,
        find: &Find,
        conv: &Conv,
        descriptors: &Descriptors,
        allocate: &mut Allocate<'_>,
        at: &str,
    ) -> Result<miopenConvFwdAlgorithm_t, RuntimeError> {
        let (library, api) = (&self.library, self.library.api());
        let [x, w, y] = descriptors.tensors;
        let c = descriptors.convolution;
        // SAFETY: a descriptor that was made.
        let status = unsafe { find.api.miopenSetConvolutionFindMode(c, find.mode) };
        library.check("miopenSetConvolutionFindMode", status, at)?;
        let mut mode = FindMode(0);
        // SAFETY: as above; a place for the result.
        let status = unsafe { find.api.miopenGetConvolutionFindMode(c, &mut mode) };
        library.check("miopenGetConvolutionFindMode", status, at)?;
        if mode != find.mode {
            return Err(RuntimeError::Unsupported {
                what: format!(
                    "find mode {} of this MIOpen, which goes on in mode {},",
                    find.mode.0, mode.0
                ),
                at: at.to_owned(),
            });
        }
        let mut bytes = 0;
        // SAFETY: handle and descriptors are alive; a place for the result.
        let status = unsafe { api.miopenConvolutionForwardGetWorkSpaceSize(self.raw, w, x, c, y, &mut bytes) };
        library.check("miopenConvolutionForwardGetWorkSpaceSize", status, at)?;
        // Defined numbers, so that no kernel does anything odd with others. Results and workspaces are written before
        // they are read.
        let input = allocate(conv.input.bytes(conv.dtype), Content::Zeros)?;
        let filter = allocate(conv.filter.bytes(conv.dtype), Content::Zeros)?;
        let result = allocate(conv.result.bytes(conv.out), Content::Any)?;
        let workspace = (bytes > 0).then(|| allocate(bytes, Content::Any)).transpose()?;
        let (mut count, mut found) = (
            0,
            miopenConvAlgoPerf_t {
                __bindgen_anon_1: miopenConvAlgoPerf_t__bindgen_ty_1 {
                    fwd_algo: miopenConvFwdAlgorithm_t(0),
                },
                time: 0.0,
                memory: 0,
            },
        );
        // SAFETY: handle and descriptors are alive; the operands lie in memory that holds what the descriptors say, and
        // the workspace in what was asked for, until the call is back, which waits for what it timed; there is room for
        // the one result.
        let status = unsafe {
            api.miopenFindConvolutionForwardAlgorithm(
                self.raw,
                x,
                input.address as *const c_void,
                w,
                filter.address as *const c_void,
                c,
                y,
                result.address as *mut c_void,
                1,
                &mut count,
                &mut found,
                workspace
                    .as_ref()
                    .map_or(null_mut(), |memory| memory.address as *mut c_void),
                bytes,
                false,
            )
        };
        library.check("miopenFindConvolutionForwardAlgorithm", status, at)?;
        if count < 1 {
            return Err(RuntimeError::Unsupported {
                what: "miopen_conv: MIOpen found no algorithm for this convolution".into(),
                at: format!("{at}; compile with --no-libraries, and the kernel is generated instead"),
            });
        }
        // SAFETY: every member of the union is a number of the same size.
        Ok(unsafe { found.__bindgen_anon_1.fwd_algo })
    }

    pub(super) fn set_stream(&self, stream: RawStream, at: &str) -> Result<(), RuntimeError> {
        // SAFETY: the handle and the stream are alive and of one device.
        let status = unsafe { self.library.api().miopenSetStream(self.raw, stream.0.cast()) };
        self.library.check("miopenSetStream", status, at)
    }

    /// Enqueues a convolution that was made ready. The workspace has at least the bytes that it takes.
    pub fn conv(
        &self,
        conv: &Conv,
        [input, filter, result]: [u64; 3],
        workspace: u64,
        stream: RawStream,
        at: &str,
    ) -> Result<(), RuntimeError> {
        let Some(ready) = self.ready.get(conv) else {
            return Err(RuntimeError::Program(format!(
                "{at}: a convolution that was not made ready"
            )));
        };
        self.set_stream(stream, at)?;
        let [x, w, y] = ready.descriptors.tensors;
        // SAFETY: handle and descriptors are alive; the operands lie in memory that holds what the descriptors say,
        // until the run was waited for.
        let status = unsafe {
            self.library.api().miopenConvolutionForwardImmediate(
                self.raw,
                w,
                filter as *const c_void,
                x,
                input as *const c_void,
                ready.descriptors.convolution,
                y,
                result as *mut c_void,
                if ready.workspace == 0 {
                    null_mut()
                } else {
                    workspace as *mut c_void
                },
                ready.workspace,
                ready.solution,
            )
        };
        self.library.check("miopenConvolutionForwardImmediate", status, at)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.ready.clear();
        // SAFETY: the handle is this value's own, and this is its end. A failure leaves nothing to do.
        let _ = unsafe { self.library.api().miopenDestroy(self.raw) };
    }
}

impl Find {
    fn solutions(&self) -> MutexGuard<'_, HashMap<Conv, u64>> {
        self.solutions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which solutions go before all others.
#[derive(Clone, Copy)]
enum First {
    Solution(u64),
    /// Those of an algorithm, as they are ranked.
    Algorithm(miopenConvFwdAlgorithm_t),
}

impl First {
    fn is(self, solution: &miopenConvSolution_t) -> bool {
        match self {
            First::Solution(id) => solution.solution_id == id,
            // Of one algorithm both enums have the same number.
            First::Algorithm(algorithm) => solution.algorithm.0 == algorithm.0,
        }
    }
}

/// MIOpen's descriptions of one convolution; null where not made yet.
struct Descriptors {
    library: Arc<Miopen>,
    /// Of the input, the filter, the result.
    tensors: [miopenTensorDescriptor_t; 3],
    convolution: miopenConvolutionDescriptor_t,
}

impl Descriptors {
    fn new(library: &Arc<Miopen>, conv: &Conv, at: &str) -> Result<Descriptors, RuntimeError> {
        let mut made = Descriptors {
            library: library.clone(),
            tensors: [null_mut(); 3],
            convolution: null_mut(),
        };
        let api = library.api();
        let (operand, result) = (datatype(conv.dtype), datatype(conv.out));
        let tensors = [(&conv.input, operand), (&conv.filter, operand), (&conv.result, result)];
        for (descriptor, (tensor, dtype)) in made.tensors.iter_mut().zip(tensors) {
            // SAFETY: a place for the result.
            let status = unsafe { api.miopenCreateTensorDescriptor(descriptor) };
            library.check("miopenCreateTensorDescriptor", status, at)?;
            let (sizes, strides) = (tensor.sizes.as_ptr(), tensor.strides.as_ptr());
            // SAFETY: a descriptor that was made, and four sizes and strides.
            let status = unsafe { api.miopenSetTensorDescriptor(*descriptor, dtype, 4, sizes, strides) };
            library.check("miopenSetTensorDescriptor", status, at)?;
        }
        // SAFETY: a place for the result.
        let status = unsafe { api.miopenCreateConvolutionDescriptor(&mut made.convolution) };
        library.check("miopenCreateConvolutionDescriptor", status, at)?;
        // SAFETY: a descriptor that was made, and two numbers of each kind.
        let status = unsafe {
            api.miopenInitConvolutionNdDescriptor(
                made.convolution,
                2,
                conv.pads.as_ptr(),
                conv.strides.as_ptr(),
                conv.dilations.as_ptr(),
                miopenConvolutionMode_t::miopenConvolution,
            )
        };
        library.check("miopenInitConvolutionNdDescriptor", status, at)?;
        // SAFETY: as above.
        let status = unsafe { api.miopenSetConvolutionGroupCount(made.convolution, conv.groups) };
        library.check("miopenSetConvolutionGroupCount", status, at)?;
        Ok(made)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let api = self.library.api();
        for descriptor in self.tensors.into_iter().filter(|d| !d.is_null()) {
            // SAFETY: this value's own, and this is its end. A failure leaves nothing to do.
            let _ = unsafe { api.miopenDestroyTensorDescriptor(descriptor) };
        }
        if !self.convolution.is_null() {
            // SAFETY: as above.
            let _ = unsafe { api.miopenDestroyConvolutionDescriptor(self.convolution) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::op::Window;

    fn conv(
        layout: Layout,
        window: Window,
        input: &[i64],
        filter: &[i64],
        result: &[i64],
    ) -> Result<Option<Conv>, RuntimeError> {
        let ty = |shape: &[i64]| TensorType::new(DType::F32, shape.to_vec());
        let op = ConvOp {
            window,
            groups: 1,
            layout,
            transposed: None,
            pad_value: 0,
            out: DType::F32,
        };
        Conv::new(&op, &ty(input), &ty(filter), &ty(result), &Bindings::default(), "s0")
    }

    #[test]
    fn layouts_are_strides() {
        let first = conv(
            Layout::ChannelsFirst,
            Window::unit(2),
            &[2, 3, 8, 9],
            &[4, 3, 1, 1],
            &[2, 4, 8, 9],
        );
        let first = first.unwrap().unwrap();
        assert_eq!(
            (first.input.sizes, first.input.strides),
            ([2, 3, 8, 9], [216, 72, 9, 1])
        );
        let last = conv(
            Layout::ChannelsLast,
            Window::unit(2),
            &[2, 8, 9, 3],
            &[4, 1, 1, 3],
            &[2, 8, 9, 4],
        );
        let last = last.unwrap().unwrap();
        assert_eq!(last.input.sizes, first.input.sizes);
        assert_eq!(last.input.strides, [216, 1, 27, 3]);
        assert_eq!((last.filter.sizes, last.filter.strides), ([4, 3, 1, 1], [3, 1, 3, 3]));
        let empty = conv(
            Layout::ChannelsFirst,
            Window::unit(2),
            &[0, 3, 8, 9],
            &[4, 3, 1, 1],
            &[0, 4, 8, 9],
        );
        assert_eq!(empty.unwrap(), None);
    }

    #[test]
    fn what_it_does_not_take_is_refused_with_the_way_out() {
        let window = Window {
            pad_low: vec![1, 0],
            ..Window::unit(2)
        };
        let error = conv(
            Layout::ChannelsFirst,
            window,
            &[2, 3, 8, 9],
            &[4, 3, 2, 1],
            &[2, 4, 8, 9],
        )
        .unwrap_err();
        assert!(error.to_string().contains("--no-libraries"), "{error}");
        let line = conv(
            Layout::ChannelsFirst,
            Window::unit(1),
            &[2, 3, 8],
            &[4, 3, 1],
            &[2, 4, 8],
        )
        .unwrap_err();
        assert!(line.to_string().contains("miopen_conv"), "{line}");
    }
}
