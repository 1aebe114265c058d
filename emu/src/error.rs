//! The typed errors: what was wrong with a code object, a launch, a memory call, or an executed instruction.

use std::fmt;

/// Why a code object or a kernel in it could not be loaded.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// The bytes are not a complete ELF file.
    #[error("the code object is not a readable ELF file: {0}")]
    Elf(String),
    /// The ELF file is not an AMDGPU HSA code object.
    #[error("the ELF file is not an AMDGPU HSA code object: {0}")]
    NotAmdGpu(String),
    /// The metadata note is missing or damaged.
    #[error("the code object's metadata: {0}")]
    Metadata(String),
    /// The code object is for a GPU that the emulator does not know.
    #[error("the code object is for {0}, an arch the emulator does not know")]
    UnknownArch(String),
    /// The code object is for another GPU than the one it is loaded on.
    #[error("the code object is for {object}, the GPU is {gpu}")]
    WrongArch {
        /// What the code object asks for.
        object: String,
        /// What the GPU is.
        gpu: String,
    },
    /// A bundle has no code object for the GPU.
    #[error("the bundle has no code object for {wanted}; it holds {present:?}")]
    NotInBundle {
        /// What was asked for.
        wanted: String,
        /// The targets in the bundle.
        present: Vec<String>,
    },
    /// No kernel has this name.
    #[error("no kernel is named {name}; the code object has {present:?}")]
    NoSuchKernel {
        /// What was asked for.
        name: String,
        /// The kernels that are there.
        present: Vec<String>,
    },
    /// A relocation of a kind the loader does not apply.
    #[error("relocation type {kind} at {offset:#x} is not supported")]
    Relocation {
        /// The ELF relocation type.
        kind: u32,
        /// The place it would change.
        offset: u64,
    },
    /// The disassembler could not be used.
    #[error(transparent)]
    Disassembly(#[from] DisassemblyError),
    /// An instruction could not be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The segments do not fit into device memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Why the disassembler gave no text.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("disassembly: {0}")]
pub struct DisassemblyError(pub String);

/// An instruction that the emulator does not know.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("at {address:#x}: `{text}`: {reason}")]
pub struct DecodeError {
    /// The offset of the instruction from the start of the loaded image.
    pub address: u64,
    /// The instruction's text.
    pub text: String,
    /// What is not understood.
    pub reason: String,
}

/// Why a host call on device memory failed.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum MemoryError {
    /// The memory is full.
    #[error("out of device memory: {asked} bytes asked, {free} of {capacity} bytes free")]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes free.
        free: u64,
        /// Bytes in all.
        capacity: u64,
    },
    /// The machine that emulates the device has no memory for it.
    #[error("this machine has no memory for {asked} bytes of the emulated device, which itself has {free} free")]
    HostMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes free on the device.
        free: u64,
    },
    /// The range is not inside one live allocation.
    #[error("{size} bytes at {address:#x} are not inside one allocation{note}")]
    OutOfBounds {
        /// First byte.
        address: u64,
        /// Bytes.
        size: u64,
        /// What is near it.
        note: String,
    },
    /// The address was freed before.
    #[error("{address:#x} lies in memory that was freed")]
    Freed {
        /// The address.
        address: u64,
    },
    /// The address is not the start of an allocation.
    #[error("{address:#x} is not the start of an allocation")]
    NotAllocated {
        /// The address.
        address: u64,
    },
}

/// Why a launch gave no counters.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum LaunchError {
    /// The grid or the block has a zero extent.
    #[error("kernel {kernel}: grid {grid:?} of blocks {block:?} has an extent of zero")]
    EmptyGrid {
        /// The kernel.
        kernel: String,
        /// Blocks by axis.
        grid: [u32; 3],
        /// Work-items by axis.
        block: [u32; 3],
    },
    /// The grid has more work-items along an axis than 32 bits count.
    #[error("kernel {kernel}: grid {grid:?} of blocks {block:?} has more than 2^32 - 1 work-items along an axis")]
    GridTooLarge {
        /// The kernel.
        kernel: String,
        /// Blocks by axis.
        grid: [u32; 3],
        /// Work-items by axis.
        block: [u32; 3],
    },
    /// The grid has more workgroups along y or z than a dispatch can have.
    #[error("kernel {kernel}: grid {grid:?} has more than {limit} workgroups along y or z")]
    GridTooDeep {
        /// The kernel.
        kernel: String,
        /// Blocks by axis.
        grid: [u32; 3],
        /// Workgroups allowed along y and z.
        limit: u32,
    },
    /// The block has more work-items than the kernel was compiled for.
    #[error("kernel {kernel}: a block of {asked} work-items; it was compiled for at most {limit}")]
    BlockTooLarge {
        /// The kernel.
        kernel: String,
        /// Work-items asked for.
        asked: u64,
        /// Work-items allowed.
        limit: u32,
    },
    /// The argument bytes do not cover the explicit arguments.
    #[error("kernel {kernel}: {given} bytes of arguments; its explicit arguments take {needed}")]
    KernargsTooShort {
        /// The kernel.
        kernel: String,
        /// Bytes given.
        given: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// Static and dynamic LDS together exceed what a workgroup may have.
    #[error("kernel {kernel}: {asked} bytes of LDS; a workgroup has at most {limit}")]
    LdsTooLarge {
        /// The kernel.
        kernel: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes allowed.
        limit: u32,
    },
    /// The kernel asks for something the emulator does not provide.
    #[error("kernel {kernel}: {what}")]
    Unsupported {
        /// The kernel.
        kernel: String,
        /// What it asks for.
        what: String,
    },
    /// An instruction faulted.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
    /// There are no facts to time the arch by.
    #[error("launches are not timed for {arch}; they are for {}", known.join(", "))]
    NotTimed {
        /// The arch, and the product that was asked for.
        arch: String,
        /// Those that are timed.
        known: Vec<String>,
    },
}

/// An error found while an instruction executed.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("kernel {kernel}, workgroup {workgroup:?}, wave {wave}{}: at {address:#x} `{instruction}`: {kind}", lane_note(.lane))]
pub struct Fault {
    /// The kernel.
    pub kernel: String,
    /// The instruction's offset from the start of the loaded image.
    pub address: u64,
    /// The instruction's text.
    pub instruction: String,
    /// The workgroup's position in the grid.
    pub workgroup: [u32; 3],
    /// The wave's index in its workgroup.
    pub wave: u32,
    /// The lane in its wave, where one lane is at fault.
    pub lane: Option<u32>,
    /// What went wrong.
    pub kind: FaultKind,
}

fn lane_note(lane: &Option<u32>) -> String {
    lane.map(|lane| format!(", lane {lane}")).unwrap_or_default()
}

/// Which memory an access went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Device memory.
    Global,
    /// The workgroup's LDS.
    Lds,
    /// The lane's scratch.
    Scratch,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Global => "global memory",
            Space::Lds => "LDS",
            Space::Scratch => "scratch",
        })
    }
}

/// What an access did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It read.
    Read,
    /// It wrote.
    Write,
    /// It read and wrote as one step.
    Atomic,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Atomic => "atomic",
        })
    }
}

fn other_wave(wave: u32) -> String {
    match wave {
        u32::MAX => "several waves".into(),
        wave => format!("wave {wave}"),
    }
}

fn loaded_note(at: &Option<u64>) -> String {
    at.map(|at| format!(", loaded at {at:#x}")).unwrap_or_default()
}

/// What undefined bits decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A value that is stored to global memory, or given to an atomic.
    Value,
    /// Where a memory access goes.
    Address,
    /// Which way the wave goes, or which of its lanes are on.
    Branch,
    /// An atomic's old value.
    Atomic,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Use::Value => "the stored value",
            Use::Address => "the address",
            Use::Branch => "the control flow",
            Use::Atomic => "the atomic's old value",
        })
    }
}

/// What went wrong with an instruction.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// An access outside every allocation.
    #[error("{access} of {size} bytes at {address:#x} in {space} is out of bounds{note}")]
    OutOfBounds {
        /// The memory.
        space: Space,
        /// What it did.
        access: Access,
        /// First byte.
        address: u64,
        /// Bytes.
        size: u32,
        /// What is near it.
        note: String,
    },
    /// An access to memory that was freed.
    #[error("{access} of {size} bytes at {address:#x}: use after free")]
    UseAfterFree {
        /// What it did.
        access: Access,
        /// First byte.
        address: u64,
        /// Bytes.
        size: u32,
    },
    /// An access that the instruction's alignment forbids.
    #[error("{access} of {size} bytes at {address:#x} in {space} is misaligned")]
    Misaligned {
        /// The memory.
        space: Space,
        /// What it did.
        access: Access,
        /// First byte.
        address: u64,
        /// Bytes.
        size: u32,
    },
    /// Bytes that nothing wrote decide what the kernel does.
    #[error("{used} depends on memory that was never written: {size} bytes at {address:#x} in {space}{}", loaded_note(.loaded_at))]
    Uninitialized {
        /// The memory.
        space: Space,
        /// First byte; of another lane where several have undefined bits in one register.
        address: u64,
        /// Bytes.
        size: u32,
        /// What they decide.
        used: Use,
        /// The load's offset from the start of the loaded image, where it is another instruction.
        loaded_at: Option<u64>,
    },
    /// A register used while a memory operation that writes it is outstanding.
    #[error("register {register} is used before its {counter} was waited on")]
    MissingWait {
        /// The register.
        register: String,
        /// The counter that covers it.
        counter: &'static str,
    },
    /// A wave reads LDS that another wave stored, and that one came to the barrier between without waiting for its
    /// store.
    #[error(
        "read at {address:#x} in LDS of what wave {writer} stored and did not wait for ({counter}) before the barrier"
    )]
    UnorderedStore {
        /// The byte.
        address: u64,
        /// The wave that stored it.
        writer: u32,
        /// The counter that it had to wait for.
        counter: &'static str,
    },
    /// A wave meets bytes of another that had an access to them under way when it came to the barrier between.
    #[error(
        "{access} at {address:#x} in {space}, where a {earlier} of wave {other} may still be under way: it did not wait for it ({counter}) \
         before the barrier"
    )]
    UnorderedAccess {
        /// The memory.
        space: Space,
        /// What this wave did.
        access: Access,
        /// The byte.
        address: u64,
        /// The other wave.
        other: u32,
        /// What that one did.
        earlier: Access,
        /// The counter that it had to wait for.
        counter: &'static str,
    },
    /// Two waves touched the same byte between barriers, one of them writing.
    #[error("{access} at {address:#x} in {space} races with {}", other_wave(*.other))]
    Race {
        /// The memory.
        space: Space,
        /// What this wave did.
        access: Access,
        /// The byte.
        address: u64,
        /// The other wave; `u32::MAX` for several.
        other: u32,
    },
    /// Two workgroups of a launch touched the same byte of global memory with nothing to order them, one of them
    /// writing.
    #[error("{access} at {address:#x} in global memory races with workgroup {other:?}")]
    GroupRace {
        /// What this workgroup did.
        access: Access,
        /// The byte.
        address: u64,
        /// The other workgroup.
        other: [u32; 3],
    },
    /// An instruction that was not decoded was reached.
    #[error("unknown instruction: {0}")]
    Unknown(String),
    /// The program counter left the code.
    #[error("the program counter {0:#x} is not in the kernel's code")]
    BadPc(u64),
    /// A wave waits at a barrier that the others cannot reach.
    #[error("deadlock: no wave of the workgroup can run")]
    Deadlock,
    /// A workgroup executed more instructions than allowed.
    #[error("the workgroup executed more than {0} instructions: an endless loop, or a limit that is too low")]
    InstructionLimit(u64),
    /// The kernel executed a trap.
    #[error("trap {0}")]
    Trap(u32),
    /// A state of the instruction that the emulator does not model.
    #[error("{0}")]
    NotModelled(String),
}
