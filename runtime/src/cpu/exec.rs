//! One kernel at one set of sizes: a lowered kernel with its constants packed, as pieces that run one after another.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use ir::HostTensor;
use ir::graph::ConstId;
use ir::host::product::{Matrix, QuantisedMatrix};
use ir::host::{self, HostKernel, Temporary, ordered as lines, shapes};
use ir::op::Layout;

use super::conv::{ConvExec, Filters};
use super::env::RunMemory;
use super::gemm::GemmExec;
use super::integers::{IntegerExec, IntegersKey};
use super::kernels::dots::Dots;
use super::kernels::gemm::{Batch, Integers, MatRef, PackedB, QuantisedB};
use super::kernels::integers::{PackedIntegers, given_bytes};
use super::kernels::workspace::{AlignedBuf, NoRoom};
use super::kernels::{Isa, Pool};
use super::loops::LoopsExec;
use super::recurrent::RecurrentExec;
use super::{attention, copying, ordered, pooling, rows};
use crate::error::RuntimeError;

impl From<NoRoom> for RuntimeError {
    fn from(NoRoom(asked): NoRoom) -> RuntimeError {
        RuntimeError::no_memory(asked)
    }
}

/// Weights in the form that kernels read them, made once each.
#[derive(Debug, Default)]
pub(crate) struct Packs {
    matrices: Mutex<HashMap<MatrixKey, Arc<PackedB>>>,
    filters: Mutex<HashMap<FilterKey, Filters>>,
    quantised: Mutex<HashMap<QuantisedKey, Arc<QuantisedB>>>,
    integers: Mutex<HashMap<IntegersKey, Arc<Vec<PackedIntegers>>>>,
    gates: Mutex<HashMap<GatesKey, Arc<Vec<f32>>>>,
}

/// Weights of a recurrent layer's gates, and the size of its hidden state.
type GatesKey = (ConstId, usize);

/// What filters are packed by: a constant may be the filters of several shapes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FilterKey {
    pub id: ConstId,
    pub layout: Layout,
    /// Filters, channels of a group, window.
    pub sizes: [usize; 4],
    pub groups: usize,
    pub winograd: bool,
    /// Strides and dilations, which decide the phases of a transposed convolution.
    pub transposed: Option<[[usize; 2]; 2]>,
}

type MatrixKey = (ConstId, [i64; 3], Vec<isize>, usize, usize);

/// A kernel of the plan, the constants behind its parameters, rows and columns, where the integers are.
type QuantisedKey = (String, Vec<Option<ConstId>>, [usize; 2], [i64; 3]);

impl Packs {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        let filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        let quantised = self.quantised.lock().unwrap_or_else(PoisonError::into_inner);
        let integers = self.integers.lock().unwrap_or_else(PoisonError::into_inner);
        let gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        matrices.values().map(|p| p.bytes()).sum::<usize>()
            + gates.values().map(|p| size_of_val(&p[..])).sum::<usize>()
            + filters.values().map(|p| p.bytes()).sum::<usize>()
            + quantised.values().map(|p| p.bytes()).sum::<usize>()
            + integers
                .values()
                .flat_map(|p| p.iter())
                .map(PackedIntegers::bytes)
                .sum::<usize>()
    }
}

/// What a lowered kernel is prepared with.
pub(crate) struct Prepare<'a> {
    /// The kernel's name.
    pub name: &'a str,
    pub threads: usize,
    /// Packs large weights, where there is one.
    pub pool: Option<&'a Pool>,
    pub isa: Isa,
    /// The constant behind each parameter of the kernel.
    pub constants: &'a [Option<(ConstId, &'a HostTensor)>],
    pub packs: &'a Packs,
    /// Convolutions sum products directly, never by Winograd's transform.
    pub direct_convolutions: bool,
}

impl<'a> Prepare<'a> {
    /// Returns the constant behind a parameter that the lowering says to be one.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn given(&self, param: usize) -> Result<(ConstId, &'a HostTensor), RuntimeError> {
        let constant = self.constants.get(param).copied().flatten();
        constant.ok_or_else(|| {
            RuntimeError::Program(format!(
                "kernel {}: parameter {param} is packed and no constant",
                self.name
            ))
        })
    }

    /// Packs a constant's matrices of `k` rows and `n` columns, which begin where `table` says.
    pub(crate) fn pack(
        &self,
        matrix: &Matrix,
        table: &[isize],
        [k, n]: [usize; 2],
    ) -> Result<Arc<PackedB>, RuntimeError> {
        let (id, tensor) = self.given(matrix.param)?;
        let key = (id, [matrix.base, matrix.row, matrix.col], table.to_vec(), k, n);
        let mut packs = self.packs.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = packs.get(&key) {
            return Ok(found.clone());
        }
        let aligned = aligned(tensor)?;
        let src = MatRef {
            ptr: aligned
                .ptr()
                .wrapping_offset(matrix.base as isize * matrix.elem.size() as isize),
            elem: matrix.elem,
            row_stride: matrix.row as isize,
            col_stride: matrix.col as isize,
            batch: Batch::Table(&key.2),
        };
        // SAFETY: the index was proven to stay inside the parameter, which has the constant's elements.
        let packed = Arc::new(unsafe { PackedB::on(self.pool, self.isa, key.2.len(), k, n, &src) }?);
        packs.insert(key, packed.clone());
        Ok(packed)
    }

    /// Packs the quantised right operand of the kernel's product, once for its constants.
    pub(crate) fn pack_quantised(
        &self,
        param: usize,
        matrix: &QuantisedMatrix,
        [k, n]: [usize; 2],
    ) -> Result<Arc<QuantisedB>, RuntimeError> {
        let (_, tensor) = self.given(param)?;
        let ids = self.constants.iter().map(|c| c.map(|(id, _)| id)).collect();
        let key = (self.name.to_owned(), ids, [k, n], [matrix.base, matrix.row, matrix.col]);
        let integers = Integers {
            bytes: &tensor.bytes,
            bits: matrix.bits,
            signed: matrix.signed,
            float: matrix.float,
            base: matrix.base,
            row: matrix.row,
            col: matrix.col,
        };
        let groups = k.div_ceil(matrix.group.max(1));
        let scale = |col: usize, group: usize| matrix.scales[col * groups + group];
        once(&self.packs.quantised, key, || {
            QuantisedB::new(self.pool, self.isa, [k, n, matrix.group], &integers, scale).map(Arc::new)
        })
    }

    /// Packs weights of products of integers, once for what the key says of them.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn pack_integers(
        &self,
        key: IntegersKey,
        pack: impl FnOnce() -> Result<Vec<PackedIntegers>, NoRoom>,
    ) -> Result<Arc<Vec<PackedIntegers>>, RuntimeError> {
        once(&self.packs.integers, key, || pack().map(Arc::new))
    }

    /// Packs the weights of a recurrent layer's gates, once for what the key says of them.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn pack_gates(
        &self,
        key: GatesKey,
        pack: impl FnOnce() -> Result<Vec<f32>, NoRoom>,
    ) -> Result<Arc<Vec<f32>>, RuntimeError> {
        once(&self.packs.gates, key, || pack().map(Arc::new))
    }

    /// Packs a convolution's filters, once for what the key says of them.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn pack_filters(
        &self,
        key: FilterKey,
        pack: impl FnOnce() -> Result<Filters, NoRoom>,
    ) -> Result<Filters, RuntimeError> {
        once(&self.packs.filters, key, pack)
    }
}

/// What a table has for a key, made where it has nothing.
///
/// # Errors
/// There is no memory for it.
fn once<K: Eq + Hash, V: Clone>(
    table: &Mutex<HashMap<K, V>>,
    key: K,
    make: impl FnOnce() -> Result<V, NoRoom>,
) -> Result<V, RuntimeError> {
    Ok(match table.lock().unwrap_or_else(PoisonError::into_inner).entry(key) {
        Entry::Occupied(found) => found.get().clone(),
        Entry::Vacant(place) => place.insert(make()?).clone(),
    })
}

/// A constant's bytes at an address that every element type may be read from.
pub(crate) enum Aligned<'a> {
    Borrowed(&'a [u8]),
    Copied(AlignedBuf),
}

impl Aligned<'_> {
    pub(crate) fn ptr(&self) -> *const u8 {
        match self {
            Aligned::Borrowed(bytes) => bytes.as_ptr(),
            Aligned::Copied(buf) => buf.as_ptr(),
        }
    }
}

/// Borrows a tensor's bytes, or copies them where their address does not suit the element type.
///
/// # Errors
/// There is no memory for a copy.
pub(crate) fn aligned(tensor: &HostTensor) -> Result<Aligned<'_>, NoRoom> {
    let bytes: &[u8] = &tensor.bytes;
    if (bytes.as_ptr() as usize).is_multiple_of((tensor.dtype.bits() as usize / 8).max(1)) {
        return Ok(Aligned::Borrowed(bytes));
    }
    let buf = AlignedBuf::asked(bytes.len())?;
    // SAFETY: the buffer was made with this length.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.as_ptr(), bytes.len()) };
    Ok(Aligned::Copied(buf))
}

/// A part of a kernel's work.
#[derive(Debug)]
enum Piece {
    Loops(Box<LoopsExec>),
    Rows(Box<shapes::RowComposite>),
    Pool(Box<shapes::Pool>),
    Copy(Box<shapes::Copy>),
    Gemm(Box<GemmExec>),
    Conv(Box<ConvExec>),
    Integers(Box<IntegerExec>),
    Attention(Box<shapes::Attention>),
    Scan(Box<lines::Scan>),
    Sort(Box<lines::Sort>),
    Recurrent(Box<RecurrentExec>),
}

impl Piece {
    fn new(piece: host::Piece, cx: &Prepare<'_>) -> Result<Piece, RuntimeError> {
        Ok(match piece {
            host::Piece::Loops(form) => Piece::Loops(Box::new(LoopsExec::new(*form, cx.threads))),
            host::Piece::Rows(form) => Piece::Rows(form),
            host::Piece::Pool(form) => Piece::Pool(form),
            host::Piece::Copy(form) => Piece::Copy(form),
            host::Piece::Gemm(form) => Piece::Gemm(Box::new(GemmExec::new(*form, cx)?)),
            host::Piece::Conv(form) => Piece::Conv(Box::new(ConvExec::new(*form, cx)?)),
            host::Piece::Integers(form) => Piece::Integers(Box::new(IntegerExec::new(*form, cx)?)),
            host::Piece::Attention(form) => Piece::Attention(form),
            host::Piece::Scan(form) => Piece::Scan(form),
            host::Piece::Sort(form) => Piece::Sort(form),
            host::Piece::Recurrent(form) => Piece::Recurrent(Box::new(RecurrentExec::new(*form, cx)?)),
        })
    }

    /// What runs, for profiles.
    fn name(&self) -> &'static str {
        match self {
            Piece::Loops(_) => "loops",
            Piece::Rows(_) => "rows",
            Piece::Pool(_) => "pool",
            Piece::Copy(_) => "copy",
            Piece::Gemm(_) => "gemm",
            Piece::Conv(_) => "conv",
            Piece::Integers(_) => "integers",
            Piece::Attention(_) => "attention",
            Piece::Scan(_) => "scan",
            Piece::Sort(_) => "sort",
            Piece::Recurrent(_) => "recurrent",
        }
    }

    /// Bytes of scratch a thread.
    fn scratch(&self) -> usize {
        match self {
            Piece::Loops(p) => p.scratch(),
            Piece::Rows(_) | Piece::Pool(_) | Piece::Copy(_) | Piece::Attention(_) => 0,
            Piece::Gemm(p) => p.scratch(),
            Piece::Conv(p) => p.scratch(),
            Piece::Integers(p) => p.scratch(),
            Piece::Scan(p) => ordered::scan_scratch(p),
            Piece::Sort(p) => ordered::sort_scratch(p),
            Piece::Recurrent(p) => p.scratch(),
        }
    }

    unsafe fn run(&self, memory: &mut RunMemory, params: &[*mut u8]) {
        // SAFETY: the caller's contract is each piece's.
        unsafe {
            match self {
                Piece::Loops(p) => p.run(&memory.env(), params),
                Piece::Rows(p) => rows::run(p, memory, params),
                Piece::Pool(p) => pooling::run(p, memory, params),
                Piece::Copy(p) => copying::run(p, &memory.env(), params),
                Piece::Gemm(p) => p.run(memory, params),
                Piece::Conv(p) => p.run(memory, params),
                Piece::Integers(p) => p.run(memory, params),
                Piece::Attention(p) => attention::run(p, memory, params),
                Piece::Scan(p) => ordered::scan(p, &memory.env(), params),
                Piece::Sort(p) => ordered::sort(p, &memory.env(), params),
                Piece::Recurrent(p) => p.run(&memory.env(), params),
            }
        }
    }
}

/// A prepared kernel.
#[derive(Debug)]
pub(crate) struct KernelExec {
    pieces: Vec<Piece>,
    /// Offsets of temporaries, and their sum.
    temps: Vec<usize>,
    temporary: usize,
    /// Parameters whose buffers are read as they are; a constant that is only read packed is not.
    pub raw: Vec<bool>,
}

impl KernelExec {
    /// Packs what a lowered kernel says to be packed, and lays out its temporaries.
    ///
    /// # Errors
    /// A constant that is not there.
    pub(crate) fn new(kernel: HostKernel, cx: &Prepare<'_>) -> Result<KernelExec, RuntimeError> {
        let mut temporary: usize = 0;
        let mut temps = Vec::with_capacity(kernel.temporaries.len());
        for temp in &kernel.temporaries {
            let bytes = match temp {
                Temporary::Bytes(bytes) => *bytes,
                Temporary::Packed(matrix, count) => given_bytes(matrix, Dots::of(cx.isa))[1].saturating_mul(*count),
            };
            temps.push(temporary);
            let end = bytes
                .checked_next_multiple_of(64)
                .and_then(|bytes| temporary.checked_add(bytes));
            temporary = end.ok_or_else(|| RuntimeError::no_memory(usize::MAX))?;
        }
        let pieces = kernel.pieces.into_iter().map(|piece| Piece::new(piece, cx));
        Ok(KernelExec {
            pieces: pieces.collect::<Result<_, _>>()?,
            temps,
            temporary,
            raw: kernel.raw,
        })
    }

    /// Bytes of scratch a thread, and of temporaries.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (
            self.pieces.iter().map(Piece::scratch).max().unwrap_or(0),
            self.temporary,
        )
    }

    /// How many temporaries follow the parameters.
    pub(crate) fn temporaries(&self) -> usize {
        self.temps.len()
    }

    /// The pieces' names, for profiles.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.pieces.iter().map(Piece::name).collect()
    }

    /// Runs the kernel; `params` has room for the temporaries after the buffers.
    ///
    /// # Safety
    /// Buffers are those of the kernel at the sizes it was prepared for, none of them written by another thread;
    /// `memory` has what [`Self::memory`] asks for.
    pub(crate) unsafe fn run(&self, memory: &mut RunMemory, params: &mut [*mut u8]) {
        let first = params.len() - self.temps.len();
        for (slot, at) in params[first..].iter_mut().zip(&self.temps) {
            *slot = memory.temporary.as_ptr().wrapping_add(*at);
        }
        for piece in &self.pieces {
            // SAFETY: the caller's contract.
            unsafe { piece.run(memory, params) }
        }
    }
}
