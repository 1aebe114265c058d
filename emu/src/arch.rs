//! Facts of the GPUs that the emulator knows, one row each.
//!
//! The rest of the crate asks for a fact (`unified_acc`, `packed_work_item_ids`), never for a name.
//! Sources: AMD's CDNA and RDNA instruction set manuals and LLVM's AMDGPU usage page.

use std::fmt;

/// The encoding family of an instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// Vega and CDNA: wave64.
    Gfx9,
    /// RDNA 1 and 2.
    Gfx10,
    /// RDNA 3: VOPD, WMMA, 16-bit register halves.
    Gfx11,
    /// RDNA 4: one counter per kind of memory operation, split barriers.
    Gfx12,
}

/// The facts of one GPU.
#[derive(Debug, PartialEq, Eq)]
pub struct Arch {
    /// The LLVM processor name, e.g. `gfx90a`.
    pub name: &'static str,
    /// The GPUs that run its code, where it is a generic processor and no GPU itself.
    pub serves: &'static [&'static str],
    /// The ELF header's machine field (EF_AMDGPU_MACH).
    pub machine: u32,
    /// The encoding family.
    pub generation: Generation,
    /// The wave size that the compiler chooses when it is not told.
    pub default_wave_size: u32,
    /// Whether kernels of 32 lanes a wave exist.
    pub wave32: bool,
    /// Bytes of LDS that one workgroup may have.
    pub lds_bytes: u32,
    /// LDS banks, each 4 bytes wide.
    pub lds_banks: u32,
    /// Whether accumulation registers (AccVGPRs) exist.
    pub acc_registers: bool,
    /// Whether AccVGPRs and VGPRs are one file, cut at the descriptor's `accum_offset`.
    pub unified_acc: bool,
    /// Vector registers of a SIMD lane that all its waves share.
    pub vgprs_per_simd: u32,
    /// Allocation granule of vector registers for the default wave size.
    pub vgpr_granule: u32,
    /// The most waves that a SIMD holds.
    pub max_waves_per_simd: u32,
    /// SIMDs that share the LDS of one workgroup.
    pub simds_per_cu: u32,
    /// Whether v0 holds the three work-item ids, ten bits each.
    pub packed_work_item_ids: bool,
    /// Whether the workgroup ids arrive in trap-temporary registers.
    pub ttmp_work_group_ids: bool,
    /// Whether flat scratch is set up by the hardware, not by the kernel's prologue.
    pub architected_flat_scratch: bool,
    /// Whether MFMA and dot instructions flush f16 and bf16 denormals.
    pub mfma_flushes_denormals: bool,
    /// Whether 8-bit floats are of the FNUZ kind (otherwise OCP).
    pub fp8_fnuz: bool,
    /// Whether a d16 load clears the other half of its register: memories with error correction write whole words.
    /// Hand-written kernels rely on it; compilers rely on neither.
    pub d16_loads_clear: bool,
    /// Whether a 16-bit VALU result clears the upper half of its register.
    pub zero_high_16: bool,
    /// Compute units of a typical part; scales the reported device, not the numbers.
    pub compute_units: u32,
}

const GFX9: Arch = Arch {
    name: "gfx906",
    serves: &[],
    machine: 0x2f,
    generation: Generation::Gfx9,
    default_wave_size: 64,
    wave32: false,
    lds_bytes: 65536,
    lds_banks: 32,
    acc_registers: false,
    unified_acc: false,
    vgprs_per_simd: 256,
    vgpr_granule: 4,
    max_waves_per_simd: 10,
    simds_per_cu: 4,
    packed_work_item_ids: false,
    ttmp_work_group_ids: false,
    architected_flat_scratch: false,
    mfma_flushes_denormals: false,
    fp8_fnuz: false,
    d16_loads_clear: true,
    zero_high_16: true,
    compute_units: 60,
};

const GFX90A: Arch = Arch {
    name: "gfx90a",
    machine: 0x3f,
    acc_registers: true,
    unified_acc: true,
    vgprs_per_simd: 512,
    vgpr_granule: 8,
    max_waves_per_simd: 8,
    packed_work_item_ids: true,
    mfma_flushes_denormals: true,
    compute_units: 104,
    ..GFX9
};

const GFX942: Arch = Arch {
    name: "gfx942",
    machine: 0x4c,
    architected_flat_scratch: true,
    mfma_flushes_denormals: false,
    fp8_fnuz: true,
    compute_units: 304,
    ..GFX90A
};

const GFX1030: Arch = Arch {
    name: "gfx1030",
    machine: 0x36,
    generation: Generation::Gfx10,
    default_wave_size: 32,
    wave32: true,
    vgprs_per_simd: 1024,
    vgpr_granule: 8,
    max_waves_per_simd: 16,
    simds_per_cu: 4,
    d16_loads_clear: false,
    zero_high_16: false,
    compute_units: 80,
    ..GFX9
};

const GFX1100: Arch = Arch {
    name: "gfx1100",
    machine: 0x41,
    generation: Generation::Gfx11,
    vgprs_per_simd: 1536,
    vgpr_granule: 24,
    packed_work_item_ids: true,
    architected_flat_scratch: true,
    compute_units: 96,
    ..GFX1030
};

const GFX1201: Arch = Arch {
    name: "gfx1201",
    machine: 0x4e,
    generation: Generation::Gfx12,
    ttmp_work_group_ids: true,
    compute_units: 64,
    ..GFX1100
};

/// Every GPU the emulator knows.
pub static ARCHES: &[Arch] = &[
    GFX9,
    Arch {
        name: "gfx908",
        machine: 0x30,
        acc_registers: true,
        compute_units: 120,
        ..GFX9
    },
    GFX90A,
    GFX942,
    Arch {
        name: "gfx950",
        machine: 0x4f,
        fp8_fnuz: false,
        lds_bytes: 163_840,
        lds_banks: 64,
        compute_units: 256,
        ..GFX942
    },
    GFX1030,
    Arch {
        name: "gfx1031",
        machine: 0x37,
        compute_units: 40,
        ..GFX1030
    },
    Arch {
        name: "gfx1032",
        machine: 0x38,
        compute_units: 32,
        ..GFX1030
    },
    Arch {
        name: "gfx1033",
        machine: 0x39,
        compute_units: 8,
        ..GFX1030
    },
    Arch {
        name: "gfx1034",
        machine: 0x3e,
        compute_units: 16,
        ..GFX1030
    },
    Arch {
        name: "gfx1035",
        machine: 0x3d,
        compute_units: 12,
        ..GFX1030
    },
    Arch {
        name: "gfx1036",
        machine: 0x45,
        compute_units: 2,
        ..GFX1030
    },
    GFX1100,
    Arch {
        name: "gfx1101",
        machine: 0x46,
        compute_units: 60,
        ..GFX1100
    },
    Arch {
        name: "gfx1102",
        machine: 0x47,
        vgprs_per_simd: 1024,
        vgpr_granule: 16,
        compute_units: 32,
        ..GFX1100
    },
    Arch {
        name: "gfx1103",
        machine: 0x44,
        vgprs_per_simd: 1024,
        vgpr_granule: 16,
        compute_units: 12,
        ..GFX1100
    },
    Arch {
        name: "gfx1150",
        machine: 0x43,
        vgprs_per_simd: 1024,
        vgpr_granule: 16,
        compute_units: 16,
        ..GFX1100
    },
    Arch {
        name: "gfx1151",
        machine: 0x4a,
        compute_units: 40,
        ..GFX1100
    },
    Arch {
        name: "gfx1152",
        machine: 0x55,
        vgprs_per_simd: 1024,
        vgpr_granule: 16,
        compute_units: 8,
        ..GFX1100
    },
    Arch {
        name: "gfx1200",
        machine: 0x48,
        compute_units: 32,
        ..GFX1201
    },
    GFX1201,
    Arch {
        name: "gfx9-generic",
        serves: &["gfx906"],
        machine: 0x51,
        ..GFX9
    },
    Arch {
        name: "gfx9-4-generic",
        serves: &["gfx942", "gfx950"],
        machine: 0x5f,
        ..GFX942
    },
    Arch {
        name: "gfx10-3-generic",
        serves: &[
            "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036",
        ],
        machine: 0x53,
        ..GFX1030
    },
    Arch {
        name: "gfx11-generic",
        serves: &[
            "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152",
        ],
        machine: 0x54,
        vgprs_per_simd: 1024,
        vgpr_granule: 16,
        ..GFX1100
    },
    Arch {
        name: "gfx12-generic",
        serves: &["gfx1200", "gfx1201"],
        machine: 0x59,
        ..GFX1201
    },
];

impl Arch {
    /// Finds an arch by its name; target features (`gfx90a:xnack-`) are ignored.
    pub fn by_name(name: &str) -> Option<&'static Arch> {
        let base = name.split(':').next().unwrap_or(name);
        ARCHES.iter().find(|arch| arch.name == base)
    }

    /// Finds an arch by the machine field of an ELF header's flags.
    pub fn by_machine(flags: u32) -> Option<&'static Arch> {
        ARCHES.iter().find(|arch| arch.machine == flags & 0xff)
    }

    /// Whether a GPU of another arch, or of this one, runs its code.
    pub fn runs_on(&self, gpu: &Arch) -> bool {
        self.name == gpu.name || self.serves.contains(&gpu.name)
    }

    /// Whether the arch is of `generation` or later.
    pub fn at_least(&self, generation: Generation) -> bool {
        self.generation >= generation
    }

    /// The waves a SIMD can hold for a kernel with these registers.
    pub fn waves_by_vgprs(&self, vgprs: u32, wave_size: u32) -> u32 {
        let factor = if self.wave32 && wave_size == 64 { 2 } else { 1 };
        let granule = self.vgpr_granule.max(1);
        let used = vgprs.max(1).div_ceil(granule) * granule * factor;
        (self.vgprs_per_simd / used).clamp(1, self.max_waves_per_simd)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
