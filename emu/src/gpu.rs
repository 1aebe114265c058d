//! The device: modules loaded from code objects, kernels ready to run, launches.

use crate::arch::Arch;
use crate::counters::Counters;
use crate::decode::text::{PRIVATE_BASE, SHARED_BASE};
use crate::decode::{Code, Part, compile};
use crate::disasm::Disassembler;
use crate::error::{DecodeError, Fault, LaunchError, LoadError};
use crate::exec::ledger::Ledger;
use crate::exec::workgroup::{self, Launch};
use crate::loader::{CodeObject, KernelInfo};
use crate::memory::Memory;
use crate::timing::{self, Report, TimingOptions};
use rayon::prelude::*;
use std::sync::{Arc, Mutex, OnceLock};

/// What a launch checks and how it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchOptions {
    /// Report reads of global memory and LDS that nothing wrote.
    pub uninitialized: bool,
    /// Report registers used before their memory operation was waited on.
    pub waits: bool,
    /// Report races within a workgroup, in LDS and in global memory; with `waits` also accesses that were under way
    /// when their wave came to a barrier. Slow.
    pub races: bool,
    /// Report races between the workgroups of a launch in global memory. Slow, and workgroups run one after the other.
    /// Atomics order the workgroups that meet in them.
    pub group_races: bool,
    /// Report plain accesses that are not aligned to their element (atomics always are checked).
    pub alignment: bool,
    /// Report accesses outside of the workgroup's LDS. The hardware reads zeros there and drops writes, and library
    /// kernels exist that read past the end and use nothing of it.
    pub lds_bounds: bool,
    /// Run workgroups on all cores; otherwise one after the other, in order, so that results that depend on the
    /// order of atomics are the same each time.
    pub parallel: bool,
    /// Fault a workgroup whose waves execute more instructions than this together: an endless loop.
    pub instruction_limit: Option<u64>,
    /// Bytes of stack of a lane for kernels whose need is not known at compile time (recursion).
    pub dynamic_stack: u32,
    /// Run these workgroups only, by their number in the grid (x fastest): samples of a large launch. None runs all.
    pub workgroups: Option<Vec<u64>>,
}

/// The default limit of a workgroup's wave instructions: minutes on one core, and far above what kernels that end need.
pub const INSTRUCTION_LIMIT: u64 = 1 << 30;

impl Default for LaunchOptions {
    fn default() -> LaunchOptions {
        LaunchOptions {
            uninitialized: true,
            waits: true,
            races: false,
            group_races: false,
            alignment: false,
            lds_bounds: true,
            parallel: true,
            instruction_limit: Some(INSTRUCTION_LIMIT),
            dynamic_stack: 8192,
            workgroups: None,
        }
    }
}

/// One emulated GPU.
#[derive(Clone)]
pub struct Gpu {
    arch: &'static Arch,
    memory: Arc<Memory>,
}

/// A code object in device memory.
#[derive(Clone)]
pub struct Module {
    inner: Arc<ModuleInner>,
}

struct ModuleInner {
    object: CodeObject,
    disassembler: Arc<dyn Disassembler>,
    base: u64,
    memory: Arc<Memory>,
    /// The functions that are not kernels, for waves of 32 and of 64 lanes: decoded once for all kernels that make
    /// calls.
    functions: [OnceLock<Result<Arc<Part>, LoadError>>; 2],
}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        // The image was allocated by `load`; a second free cannot happen.
        let _ = self.memory.free(self.base);
    }
}

/// A kernel, decoded and ready to launch.
#[derive(Clone)]
pub struct Kernel {
    module: Arc<ModuleInner>,
    info: KernelInfo,
    code: Arc<Code>,
}

/// The most workgroups along y and along z: their numbers have 16 bits.
pub const MOST_GROUPS_YZ: u32 = 65_535;
/// A .text of up to this many bytes is decoded whole where functions are called that have no symbols.
const STRIPPED_LIMIT: u64 = 1 << 18;
/// Where a launch's argument block lies. No allocation is there.
const KERNARG_BASE: u64 = 0x6f00_0000_0000;
/// Argument blocks and images are as long as a multiple of this: the widest scalar load. Compilers read whole loads
/// where the last argument or constant is a part of one, since runtimes give memory in larger pieces.
const SCALAR_LOAD_BYTES: usize = 64;
/// Where its dispatch packet lies.
const DISPATCH_BASE: u64 = 0x6f01_0000_0000;

/// Where the buffers would lie through which a kernel asks its host for something. Nothing is there.
const HOST_SERVICES: [(&str, u64, &str); 3] = [
    (
        "hidden_hostcall_buffer",
        0x6f02_0000_0000,
        "a call of the host (printf, assert)",
    ),
    ("hidden_printf_buffer", 0x6f03_0000_0000, "printf"),
    ("hidden_heap_v1", 0x6f04_0000_0000, "malloc or free in a kernel"),
];

/// What a kernel asked for that accesses `address`, where that lies in a buffer to ask the host.
pub(crate) fn host_service(address: u64) -> Option<&'static str> {
    let found = HOST_SERVICES.iter().find(|(_, base, _)| address >> 32 == base >> 32);
    found.map(|(_, _, what)| *what)
}

/// What a launch covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Work-items along each axis.
    pub items: [u32; 3],
    /// Work-items of a whole block along each axis.
    pub block: [u32; 3],
}

impl Sizes {
    /// Workgroups along each axis, a part of a block counted as one; 0 where a size is 0.
    fn groups(&self) -> [u32; 3] {
        std::array::from_fn(|axis| match self.block[axis] {
            0 => 0,
            extent => self.items[axis].div_ceil(extent),
        })
    }

    /// The size of the workgroup at `position`.
    pub(crate) fn block_at(&self, position: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|axis| {
            let first = position[axis].saturating_mul(self.block[axis]);
            self.block[axis].min(self.items[axis].saturating_sub(first))
        })
    }
}

impl Gpu {
    /// A GPU of `arch` with `memory_bytes` of memory.
    pub fn new(arch: &'static Arch, memory_bytes: u64) -> Gpu {
        Gpu {
            arch,
            memory: Arc::new(Memory::new(memory_bytes)),
        }
    }

    /// A GPU of `arch` on a memory that it may share with others.
    pub fn with_memory(arch: &'static Arch, memory: Arc<Memory>) -> Gpu {
        Gpu { arch, memory }
    }

    /// The facts of the GPU.
    pub fn arch(&self) -> &'static Arch {
        self.arch
    }

    /// The device memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Puts a code object into device memory and applies its relocations. Kernels are decoded when asked for.
    pub fn load(&self, object: CodeObject, disassembler: Arc<dyn Disassembler>) -> Result<Module, LoadError> {
        if !object.arch().runs_on(self.arch) {
            let (object, gpu) = (object.arch().name.to_string(), self.arch.name.to_string());
            return Err(LoadError::WrongArch { object, gpu });
        }
        let mut image = object.image().to_vec();
        let base = self
            .memory
            .alloc(image.len().next_multiple_of(SCALAR_LOAD_BYTES) as u64)?;
        for relocation in object.relocations() {
            const ABS64: u32 = 3;
            const RELATIVE64: u32 = 13;
            let slot = image
                .get_mut(relocation.offset as usize..)
                .and_then(|rest| rest.get_mut(..8));
            match (relocation.kind, slot) {
                (ABS64 | RELATIVE64, Some(slot)) => {
                    slot.copy_from_slice(&base.wrapping_add(relocation.value).to_le_bytes());
                }
                _ => {
                    self.memory.free(base)?;
                    return Err(LoadError::Relocation {
                        kind: relocation.kind,
                        offset: relocation.offset,
                    });
                }
            }
        }
        self.memory.write(base, &image)?;
        let inner = ModuleInner {
            object,
            disassembler,
            base,
            memory: self.memory.clone(),
            functions: Default::default(),
        };
        Ok(Module { inner: Arc::new(inner) })
    }

    /// Runs a kernel over `grid` workgroups of `block` work-items each and returns what it counted.
    ///
    /// `kernargs` holds the explicit arguments at the offsets of [`KernelInfo::args`]; the hidden ones are added.
    /// `dynamic_lds` bytes of LDS follow the kernel's own. On a fault, memory keeps what was written before it.
    pub fn launch(
        &self,
        kernel: &Kernel,
        grid: [u32; 3],
        block: [u32; 3],
        kernargs: &[u8],
        dynamic_lds: u32,
        options: &LaunchOptions,
    ) -> Result<Counters, LaunchError> {
        let mut items = [0; 3];
        for axis in 0..3 {
            items[axis] = grid[axis]
                .checked_mul(block[axis])
                .ok_or_else(|| LaunchError::GridTooLarge {
                    kernel: kernel.info.name.clone(),
                    grid,
                    block,
                })?;
        }
        self.launch_items(kernel, items, block, kernargs, dynamic_lds, options)
    }

    /// As [`Gpu::launch`], with the grid in work-items: the last workgroup along an axis may hold a part of a block.
    pub fn launch_items(
        &self,
        kernel: &Kernel,
        items: [u32; 3],
        block: [u32; 3],
        kernargs: &[u8],
        dynamic_lds: u32,
        options: &LaunchOptions,
    ) -> Result<Counters, LaunchError> {
        self.with_launch(kernel, items, block, kernargs, dynamic_lds, options, |launch, total| {
            let mut counters = self.run_all(launch, total)?;
            let block_items = block.iter().product();
            counters.occupancy = kernel.occupancy(self.arch, block_items, launch.lds_bytes);
            Ok(counters)
        })
    }

    /// Predicts the time of a launch, its grid in work-items, from a sample of its workgroups.
    ///
    /// Only sampled workgroups run, unchecked and without their matrix arithmetic, so memory afterwards holds nothing
    /// of use. Buffers should hold what the kernel's control flow and addresses depend on.
    pub fn time(
        &self,
        kernel: &Kernel,
        items: [u32; 3],
        block: [u32; 3],
        kernargs: &[u8],
        dynamic_lds: u32,
        timing: &TimingOptions,
    ) -> Result<Report, LaunchError> {
        let options = LaunchOptions {
            uninitialized: false,
            waits: false,
            lds_bounds: false,
            ..LaunchOptions::default()
        };
        self.with_launch(
            kernel,
            items,
            block,
            kernargs,
            dynamic_lds,
            &options,
            |launch, total| timing::time(launch, total, timing),
        )
    }

    /// Checks a launch and hands it on with the number of its workgroups.
    fn with_launch<T>(
        &self,
        kernel: &Kernel,
        items: [u32; 3],
        block: [u32; 3],
        kernargs: &[u8],
        dynamic_lds: u32,
        options: &LaunchOptions,
        run: impl FnOnce(&Launch<'_>, u64) -> Result<T, LaunchError>,
    ) -> Result<T, LaunchError> {
        let info = &kernel.info;
        let name = || info.name.clone();
        let sizes = Sizes { items, block };
        let grid = sizes.groups();
        if grid.contains(&0) || block.contains(&0) {
            return Err(LaunchError::EmptyGrid {
                kernel: name(),
                grid,
                block,
            });
        }
        if grid[1] > MOST_GROUPS_YZ || grid[2] > MOST_GROUPS_YZ {
            return Err(LaunchError::GridTooDeep {
                kernel: name(),
                grid,
                limit: MOST_GROUPS_YZ,
            });
        }
        let block_items = block
            .iter()
            .fold(1u64, |product, extent| product.saturating_mul(u64::from(*extent)));
        let limit = if info.max_block == 0 { 1024 } else { info.max_block };
        if block_items > u64::from(limit) {
            return Err(LaunchError::BlockTooLarge {
                kernel: name(),
                asked: block_items,
                limit,
            });
        }
        let needed = info.explicit_size() as usize;
        if kernargs.len() < needed {
            return Err(LaunchError::KernargsTooShort {
                kernel: name(),
                given: kernargs.len(),
                needed,
            });
        }
        let lds = u64::from(info.descriptor.group_segment.max(info.group_segment)) + u64::from(dynamic_lds);
        if lds > u64::from(self.arch.lds_bytes) {
            return Err(LaunchError::LdsTooLarge {
                kernel: name(),
                asked: lds,
                limit: self.arch.lds_bytes,
            });
        }
        let kernargs = argument_block(info, &sizes, kernargs, dynamic_lds);
        let mut view = self.memory.view();
        // Behind the arguments lie bytes that nothing wrote.
        view.add_constant(
            KERNARG_BASE,
            &kernargs,
            kernargs.len().max(1).next_multiple_of(SCALAR_LOAD_BYTES),
        );
        let packet = dispatch_packet(info, &sizes, lds as u32);
        view.add_constant(DISPATCH_BASE, &packet, packet.len());
        let descriptor = &info.descriptor;
        let mut scratch = descriptor.private_segment.max(info.private_segment);
        if descriptor.dynamic_stack || kernel.code.calls && scratch == 0 {
            scratch += options.dynamic_stack;
        }
        let ledger = options.group_races.then(Ledger::default);
        let launch = Launch {
            arch: self.arch,
            info,
            code: &kernel.code,
            image_base: kernel.module.base,
            memory: &self.memory,
            view: &view,
            options,
            grid,
            sizes,
            lds_bytes: lds as u32,
            kernarg_address: KERNARG_BASE,
            dispatch_address: DISPATCH_BASE,
            kernargs: &kernargs,
            scratch_size: scratch,
            ledger: ledger.as_ref(),
        };
        let total = grid
            .iter()
            .fold(1u64, |product, extent| product.saturating_mul(u64::from(*extent)));
        run(&launch, total)
    }

    fn run_all(&self, launch: &Launch<'_>, total: u64) -> Result<Counters, Box<Fault>> {
        let position = |index: u64| {
            let [x, y, _] = launch.grid.map(u64::from);
            [(index % x) as u32, (index / x % y) as u32, (index / (x * y)) as u32]
        };
        let sum = Mutex::new(Counters::default());
        let add = |counters: Counters| {
            let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *sum += &counters;
        };
        let one = |index: u64| match workgroup::run(launch, position(index)) {
            Ok(counters) => {
                add(counters);
                None
            }
            Err(fault) => Some(fault),
        };
        // The first fault in the order of the grid is the one reported.
        let parallel = launch.options.parallel && launch.ledger.is_none();
        let fault = match &launch.options.workgroups {
            Some(some) if parallel => (some.par_iter().copied())
                .filter(|index| *index < total)
                .find_map_first(one),
            Some(some) => some.iter().copied().filter(|index| *index < total).find_map(one),
            None if parallel && total > 1 => (0..total).into_par_iter().find_map_first(one),
            None => (0..total).find_map(one),
        };
        match fault {
            Some(fault) => Err(fault),
            None => Ok(sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)),
        }
    }
}

/// The explicit arguments followed by the hidden ones that the metadata lists.
fn argument_block(info: &KernelInfo, sizes: &Sizes, given: &[u8], dynamic_lds: u32) -> Vec<u8> {
    let size = info
        .kernarg_size
        .max(info.explicit_size())
        .max(info.descriptor.kernarg_size) as usize;
    let mut bytes = vec![0u8; size];
    let explicit = (info.explicit_size() as usize).min(given.len());
    bytes[..explicit].copy_from_slice(&given[..explicit]);
    let dimensions = (1..3)
        .rev()
        .find(|axis| sizes.items[*axis] > 1)
        .map_or(1, |axis| axis as u64 + 1);
    for arg in info.args.iter().filter(|arg| arg.hidden()) {
        let axis = match arg.kind.as_bytes().last() {
            Some(b'y') => 1,
            Some(b'z') => 2,
            _ => 0,
        };
        let value = match arg.kind.trim_end_matches(['x', 'y', 'z']) {
            // Whole blocks; a workgroup behind them has the remainder for its size.
            "hidden_block_count_" => u64::from(sizes.items[axis] / sizes.block[axis]),
            "hidden_group_size_" => u64::from(sizes.block[axis]),
            "hidden_remainder_" => u64::from(sizes.items[axis] % sizes.block[axis]),
            "hidden_grid_dims" => dimensions,
            "hidden_dynamic_lds_si" | "hidden_dynamic_lds_size" => u64::from(dynamic_lds),
            "hidden_private_base" => PRIVATE_BASE >> 32,
            "hidden_shared_base" => SHARED_BASE >> 32,
            "hidden_queue_ptr" => DISPATCH_BASE,
            _ => HOST_SERVICES
                .iter()
                .find(|(kind, ..)| *kind == arg.kind)
                .map_or(0, |(_, base, _)| *base),
        };
        let (start, size) = (arg.offset as usize, (arg.size as usize).min(8));
        if let Some(slot) = bytes.get_mut(start..start + size) {
            slot.copy_from_slice(&value.to_le_bytes()[..size]);
        }
    }
    bytes
}

/// The AQL packet of the dispatch, for kernels that read their sizes from it.
fn dispatch_packet(info: &KernelInfo, sizes: &Sizes, lds: u32) -> Vec<u8> {
    let mut packet = vec![0u8; 256];
    for axis in 0..3 {
        packet[4 + 2 * axis..6 + 2 * axis].copy_from_slice(&(sizes.block[axis] as u16).to_le_bytes());
        packet[12 + 4 * axis..16 + 4 * axis].copy_from_slice(&sizes.items[axis].to_le_bytes());
    }
    packet[24..28].copy_from_slice(&info.private_segment.to_le_bytes());
    packet[28..32].copy_from_slice(&lds.to_le_bytes());
    packet[40..48].copy_from_slice(&KERNARG_BASE.to_le_bytes());
    packet
}

impl Module {
    /// The code object.
    pub fn object(&self) -> &CodeObject {
        &self.inner.object
    }

    /// Decodes a kernel. Where it makes calls it gets every function of the code object, which all its kernels share.
    pub fn kernel(&self, name: &str) -> Result<Kernel, LoadError> {
        let inner = &self.inner;
        let info = inner.object.kernel(name)?.clone();
        let (text, text_size) = inner.object.text();
        let function = info.symbol.strip_suffix(".kd").unwrap_or(&info.symbol);
        let size = inner.object.symbols().get(function).map_or(0, |symbol| symbol.size);
        let entry = info.descriptor.entry;
        let own = if size == 0 {
            // Hand-written code may not say its size: it ends where the next function or kernel begins.
            let symbols = inner.object.symbols().values().filter(|symbol| symbol.function);
            let entries = inner.object.kernels().map(|kernel| kernel.descriptor.entry);
            let starts = symbols.map(|symbol| symbol.address).chain(entries);
            let end = text + text_size;
            (entry, starts.filter(|start| *start > entry).fold(end, u64::min) - entry)
        } else {
            (entry, size)
        };
        let own = self.decode(&[own], &info)?;
        let code = if own.calls {
            let shared = &inner.functions[usize::from(info.descriptor.wave32)];
            let functions = shared.get_or_init(|| self.functions(&info).map(Arc::new)).clone()?;
            Code::join(&[&own, &functions])
        } else {
            Code::join(&[&own])
        };
        Ok(Kernel {
            module: inner.clone(),
            info,
            code: Arc::new(code),
        })
    }

    /// The functions that are not kernels.
    fn functions(&self, info: &KernelInfo) -> Result<Part, LoadError> {
        let object = &self.inner.object;
        let entries: Vec<u64> = object.kernels().map(|kernel| kernel.descriptor.entry).collect();
        let mut ranges: Vec<(u64, u64)> = object
            .symbols()
            .values()
            .filter(|symbol| symbol.function && symbol.size > 0 && !entries.contains(&symbol.address))
            .map(|symbol| (symbol.address, symbol.size))
            .collect();
        // Without symbols of functions (a stripped object) a small .text is decoded whole; a large one holds kernels
        // that call within themselves.
        let (text, text_size) = object.text();
        if ranges.is_empty() && text_size <= STRIPPED_LIMIT {
            ranges.push((text, text_size));
        }
        ranges.sort_unstable();
        ranges.dedup();
        self.decode(&ranges, info)
    }

    fn decode(&self, ranges: &[(u64, u64)], info: &KernelInfo) -> Result<Part, LoadError> {
        let object = &self.inner.object;
        let image = object.image();
        let mut lines = Vec::new();
        for (start, size) in ranges {
            let bytes = image
                .get(*start as usize..(start + size) as usize)
                .ok_or_else(|| LoadError::Elf(format!("code at {start:#x} is not in the image")))?;
            lines.extend(self.inner.disassembler.disassemble(object.target(), *start, bytes)?);
        }
        let lanes = if info.descriptor.wave32 { 32 } else { 64 };
        Ok(compile(&lines, image, object.arch(), lanes, self.inner.base))
    }

    /// The device address and size of a variable.
    pub fn global(&self, name: &str) -> Option<(u64, u64)> {
        let symbol = self
            .inner
            .object
            .symbols()
            .get(name)
            .filter(|symbol| !symbol.function)?;
        Some((self.inner.base + symbol.address, symbol.size))
    }
}

impl Kernel {
    /// What the metadata and the descriptor say of it.
    pub fn info(&self) -> &KernelInfo {
        &self.info
    }

    /// Instructions in its code that the emulator does not know; reaching one is a fault.
    pub fn unknown(&self) -> &[DecodeError] {
        &self.code.unknown
    }

    /// Its instructions: the offset in the image and the text.
    pub fn instructions(&self) -> impl Iterator<Item = (u64, &str)> {
        self.code.insts.iter().map(|inst| (inst.address, inst.text.as_str()))
    }

    /// The waves that a SIMD can hold at once, by registers and LDS, for blocks of `items`.
    pub fn occupancy(&self, arch: &Arch, items: u32, lds_bytes: u32) -> u32 {
        let wave_size = if self.info.descriptor.wave32 { 32 } else { 64 };
        let by_vgprs = arch.waves_by_vgprs(self.info.vgprs.max(1), wave_size);
        if lds_bytes == 0 {
            return by_vgprs;
        }
        let groups = arch.lds_bytes / lds_bytes.max(1);
        let waves = items.div_ceil(wave_size) * groups;
        by_vgprs.min(waves.div_ceil(arch.simds_per_cu)).max(1)
    }
}
