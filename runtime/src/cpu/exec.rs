//! One kernel at one set of sizes: what was decided when it was prepared, as pieces that run one after another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ir::dim::Bindings;
use ir::entity::Entity;
use ir::graph::ConstId;
use ir::kernel::{Body, CopyBody, Expr, Kernel, RowBody, WindowBody};
use ir::op::Layout;
use ir::{HostTensor, op};

use super::affine::reachable;
use super::attention::AttentionExec;
use super::contract::{self, GemmExec};
use super::conv::ConvExec;
use super::copying::CopyExec;
use super::env::RunMemory;
use super::integers::{IntegerExec, IntegersKey};
use super::kernels::conv::PackedConv;
use super::kernels::gemm::{Batch, Elem, MatRef, PackedB, QuantisedB};
use super::kernels::integers::PackedIntegers;
use super::kernels::workspace::AlignedBuf;
use super::kernels::{Isa, Pool};
use super::loops::LoopsExec;
use super::ordered::{ScanExec, SortExec};
use super::pooling::PoolExec;
use super::rewrite::Rewritten;
use super::rows::RowsExec;
use crate::error::RuntimeError;

/// Weights in the form that kernels read them, made once each.
#[derive(Debug, Default)]
pub(crate) struct Packs {
    matrices: Mutex<HashMap<MatrixKey, Arc<PackedB>>>,
    filters: Mutex<HashMap<FilterKey, Arc<PackedConv>>>,
    quantised: Mutex<HashMap<QuantisedKey, Arc<QuantisedB>>>,
    integers: Mutex<HashMap<IntegersKey, Arc<Vec<PackedIntegers>>>>,
}

/// What filters are packed by: a constant may be the filters of several shapes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FilterKey {
    pub id: ConstId,
    pub layout: Layout,
    /// Filters, channels of a group, window.
    pub sizes: [usize; 4],
    pub groups: usize,
    pub winograd: bool,
}

type MatrixKey = (ConstId, [i64; 3], Vec<isize>, usize, usize);

/// A kernel of the plan, the constants behind its parameters, rows and columns.
type QuantisedKey = (String, Vec<Option<ConstId>>, [usize; 2]);

impl Packs {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let matrices = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        let filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        let quantised = self.quantised.lock().unwrap_or_else(PoisonError::into_inner);
        let integers = self.integers.lock().unwrap_or_else(PoisonError::into_inner);
        matrices.values().map(|p| p.bytes()).sum::<usize>()
            + filters.values().map(|p| p.bytes()).sum::<usize>()
            + quantised.values().map(|p| p.bytes()).sum::<usize>()
            + integers
                .values()
                .flat_map(|p| p.iter())
                .map(PackedIntegers::bytes)
                .sum::<usize>()
    }
}

/// What a kernel is prepared with.
pub(crate) struct Prepare<'a> {
    pub bindings: &'a Bindings,
    pub threads: usize,
    /// Packs large weights, where there is one.
    pub pool: Option<&'a Pool>,
    pub isa: Isa,
    /// The constant behind each parameter of the kernel.
    pub constants: Vec<Option<(ConstId, &'a HostTensor)>>,
    pub packs: &'a Packs,
    /// Convolutions sum products directly, never by Winograd's transform.
    pub direct_convolutions: bool,
    /// A buffer that the kernel writes is one that it reads.
    pub aliased: bool,
}

impl Prepare<'_> {
    /// The constant behind a parameter; temporaries have none.
    pub(crate) fn constant(&self, param: usize) -> Option<(ConstId, &HostTensor)> {
        self.constants.get(param).copied().flatten()
    }

    /// Packs `table.len()` matrices of a constant; strides are `[base, row, column]`.
    pub(crate) fn pack(
        &self,
        id: ConstId,
        tensor: &HostTensor,
        elem: Elem,
        [base, row, col]: [i64; 3],
        table: Vec<isize>,
        k: usize,
        n: usize,
    ) -> Result<Arc<PackedB>, RuntimeError> {
        let key = (id, [base, row, col], table, k, n);
        let mut packs = self.packs.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = packs.get(&key) {
            return Ok(found.clone());
        }
        let aligned = aligned(tensor);
        let src = MatRef {
            ptr: aligned.ptr().wrapping_offset(base as isize * elem.size() as isize),
            elem,
            row_stride: row as isize,
            col_stride: col as isize,
            batch: Batch::Table(&key.2),
        };
        // SAFETY: the index was proven to stay inside the parameter, which has the constant's elements.
        let packed = Arc::new(unsafe { PackedB::on(self.pool, self.isa, key.2.len(), k, n, &src) });
        packs.insert(key, packed.clone());
        Ok(packed)
    }

    /// Packs the quantised right operand of a kernel's product, once for its constants; `None` where `pack` gives none.
    pub(crate) fn pack_quantised(
        &self,
        kernel: &Kernel,
        sizes: [usize; 2],
        pack: impl FnOnce() -> Option<QuantisedB>,
    ) -> Option<Arc<QuantisedB>> {
        let constants = self.constants.iter().map(|c| c.map(|(id, _)| id)).collect();
        let key = (kernel.name.clone(), constants, sizes);
        let mut packs = self.packs.quantised.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = packs.get(&key) {
            return Some(found.clone());
        }
        let packed = Arc::new(pack()?);
        packs.insert(key, packed.clone());
        Some(packed)
    }

    /// Packs weights of products of integers, once for what the key says of them.
    pub(crate) fn pack_integers(
        &self,
        key: IntegersKey,
        pack: impl FnOnce() -> Vec<PackedIntegers>,
    ) -> Arc<Vec<PackedIntegers>> {
        let mut packs = self.packs.integers.lock().unwrap_or_else(PoisonError::into_inner);
        packs.entry(key).or_insert_with(|| Arc::new(pack())).clone()
    }

    /// Packs a convolution's filters, given dense as `[filters, channels / groups, kh, kw]` by `dense`.
    pub(crate) fn pack_filters(&self, key: FilterKey, pack: impl FnOnce() -> PackedConv) -> Arc<PackedConv> {
        let mut filters = self.packs.filters.lock().unwrap_or_else(PoisonError::into_inner);
        filters.entry(key).or_insert_with(|| Arc::new(pack())).clone()
    }
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
pub(crate) fn aligned(tensor: &HostTensor) -> Aligned<'_> {
    let bytes: &[u8] = &tensor.bytes;
    if (bytes.as_ptr() as usize).is_multiple_of((tensor.dtype.bits() as usize / 8).max(1)) {
        return Aligned::Borrowed(bytes);
    }
    let buf = AlignedBuf::new(bytes.len());
    // SAFETY: the buffer was made with this length.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.as_ptr(), bytes.len()) };
    Aligned::Copied(buf)
}

/// A part of a kernel's work.
#[derive(Debug)]
pub(crate) enum Piece {
    Loops(Box<LoopsExec>),
    Rows(Box<RowsExec>),
    Pool(Box<PoolExec>),
    Copy(Box<CopyExec>),
    Gemm(Box<GemmExec>),
    Conv(Box<ConvExec>),
    Integers(Box<IntegerExec>),
    Attention(Box<AttentionExec>),
    Scan(Box<ScanExec>),
    Sort(Box<SortExec>),
}

impl Piece {
    /// What runs, for profiles.
    pub(crate) fn name(&self) -> &'static str {
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
        }
    }

    /// Says whether a product or convolution reads the parameter as it lies, besides as packed panels.
    fn reads(&self, param: usize) -> bool {
        match self {
            Piece::Gemm(p) => p.reads(param),
            Piece::Conv(p) => p.reads(param),
            Piece::Integers(p) => p.reads(param),
            _ => true,
        }
    }

    fn scratch(&self) -> usize {
        match self {
            Piece::Loops(p) => p.scratch(),
            Piece::Rows(_) | Piece::Pool(_) | Piece::Copy(_) | Piece::Attention(_) => 0,
            Piece::Gemm(p) => p.scratch(),
            Piece::Conv(p) => p.scratch(),
            Piece::Integers(p) => p.scratch(),
            Piece::Scan(p) => p.scratch(),
            Piece::Sort(p) => p.scratch(),
        }
    }

    unsafe fn run(&self, memory: &mut RunMemory, params: &[*mut u8]) {
        // SAFETY: the caller's contract is each piece's.
        unsafe {
            match self {
                Piece::Loops(p) => p.run(&memory.env(), params),
                Piece::Rows(p) => p.run(memory, params),
                Piece::Pool(p) => p.run(memory, params),
                Piece::Copy(p) => p.run(&memory.env(), params),
                Piece::Gemm(p) => p.run(memory, params),
                Piece::Conv(p) => p.run(memory, params),
                Piece::Integers(p) => p.run(memory, params),
                Piece::Attention(p) => p.run(memory, params),
                Piece::Scan(p) => p.run(&memory.env(), params),
                Piece::Sort(p) => p.run(&memory.env(), params),
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
    /// Decides how a kernel runs at these sizes.
    ///
    /// # Errors
    /// A size that does not evaluate, an access that is certain to leave its buffer, or a body that is not verified.
    pub(crate) fn new(kernel: &Kernel, cx: &Prepare<'_>) -> Result<KernelExec, RuntimeError> {
        let mut rewritten = Rewritten::new(kernel);
        let mut pieces = Vec::new();
        let mut raw = vec![true; kernel.params.len()];
        match &kernel.body {
            Body::Loops(loops)
            | Body::Row(RowBody { loops, .. })
            | Body::Window(WindowBody { loops, .. })
            | Body::Copy(CopyBody { loops, .. }) => {
                let direct = match &kernel.body {
                    Body::Row(body) => RowsExec::new(kernel, body, cx)?.map(|r| Piece::Rows(Box::new(r))),
                    Body::Window(body) => PoolExec::new(kernel, body, cx)?.map(|p| Piece::Pool(Box::new(p))),
                    Body::Copy(body) => CopyExec::new(kernel, body, cx)?.map(|c| Piece::Copy(Box::new(c))),
                    _ => None,
                };
                pieces.push(match direct {
                    Some(direct) => direct,
                    None => Piece::Loops(Box::new(LoopsExec::new(
                        kernel,
                        loops,
                        cx.bindings,
                        cx.threads,
                        cx.aliased,
                    )?)),
                });
            }
            // Only plans for GPUs have them.
            Body::Contract(body) if body.pair.is_some() => {
                return Err(RuntimeError::Unsupported {
                    what: "a product whose epilogue has two columns at a time".to_owned(),
                    at: format!("kernel {}; compile for cpu", kernel.name),
                });
            }
            Body::Contract(body) => {
                contract::prepare(&mut rewritten, body, cx, &mut pieces)?;
                let packed = pieces.iter().find_map(|p| match p {
                    Piece::Gemm(g) => g.packed_param(),
                    Piece::Conv(c) => Some(c.packed_param()),
                    Piece::Integers(p) => p.packed_param(),
                    _ => None,
                });
                if let Some(param) = packed
                    && let [piece] = pieces.as_slice()
                {
                    raw[param] = piece.reads(param) || epilogue_reads(kernel, param);
                }
                // The scales and zero points of what is packed quantised are in the panels.
                if let [piece @ Piece::Gemm(product)] = pieces.as_slice()
                    && product.is_quantised()
                {
                    for (param, raw) in raw.iter_mut().enumerate() {
                        let constant = cx.constant(param).is_some();
                        *raw = !constant || piece.reads(param) || epilogue_reads(kernel, param);
                    }
                }
            }
            Body::Attention(body) => super::attention::prepare(&mut rewritten, body, cx, &mut pieces)?,
            Body::Scan(body) => pieces.push(Piece::Scan(Box::new(ScanExec::new(kernel, body, cx)?))),
            Body::Sort(body) => pieces.push(Piece::Sort(Box::new(SortExec::new(kernel, body, cx)?))),
        }
        let mut temporary = 0;
        let temps = rewritten
            .temps
            .iter()
            .map(|bytes| {
                let at = temporary;
                temporary += bytes.next_multiple_of(64);
                at
            })
            .collect();
        Ok(KernelExec {
            pieces,
            temps,
            temporary,
            raw,
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

/// Says whether a contraction's epilogue reads the parameter too.
fn epilogue_reads(kernel: &Kernel, param: usize) -> bool {
    let Some(body) = contract::body(kernel) else {
        return true;
    };
    let exprs: Vec<_> = body
        .epilogue
        .iter()
        .flat_map(|s| match *s {
            ir::kernel::Stmt::Let { value, .. } | ir::kernel::Stmt::Fold { value, .. } => vec![value],
            ir::kernel::Stmt::Store { index, value, .. } | ir::kernel::Stmt::Update { index, value, .. } => {
                vec![index, value]
            }
        })
        .chain([body.lhs.value])
        .collect();
    reachable(kernel, &exprs)
        .into_iter()
        .any(|e| matches!(kernel.exprs[e], Expr::Load { param: p, .. } if p.index() == param))
}

/// A window's size that fits a kernel's sizes.
pub(crate) fn count(v: i64) -> Option<usize> {
    usize::try_from(v).ok()
}

/// Two entries of a window, the first of which is 1 (or 0) for one spatial dim.
pub(crate) fn pair(values: &[i64], fill: i64) -> Option<[usize; 2]> {
    match *values {
        [x] => Some([count(fill)?, count(x)?]),
        [y, x] => Some([count(y)?, count(x)?]),
        _ => None,
    }
}

/// Says whether a window is one that the image kernels take: one or two dims, nothing negative.
pub(crate) fn window_pads(window: &op::Window) -> Option<[usize; 4]> {
    let low = pair(&window.pad_low, 0)?;
    let high = pair(&window.pad_high, 0)?;
    Some([low[0], low[1], high[0], high[1]])
}
