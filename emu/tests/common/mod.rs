//! What the emulator's tests share: real hiprtc in a worker process with its results cached, and launches by name.
//!
//! Without a ROCm the tests print `skipped: …` and pass. `GRAPHC_ROCM` names a ROCm prefix that has `rocm-run`
//! (made by the script under `scripts/`); an installed ROCm is used without one.
#![allow(dead_code, reason = "each test binary uses its part of the helpers")]

use graphc_emu::timing::Report;
use graphc_emu::{
    Arch, CodeObject, Counters, Fault, Gpu, Kernel, LaunchError, LaunchOptions, Line, Listing, Module, TimingOptions,
};
use object::{Object, ObjectSection};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// The archs of the fidelity suite.
pub const ARCHES: [&str; 5] = ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"];

/// The further archs that the same code covers.
pub const MORE_ARCHES: [&str; 3] = ["gfx906", "gfx908", "gfx1030"];

/// Every arch of the suites.
pub fn all_arches() -> impl Iterator<Item = &'static str> {
    ARCHES.into_iter().chain(MORE_ARCHES)
}

/// Why there is no code object.
#[derive(Clone, Debug)]
pub enum NoCode {
    /// No ROCm here.
    Skipped(String),
    /// The compiler refused the source.
    Refused(String),
}

/// The prefix of the worker's command line: a `rocm-run`, or nothing on a machine with an installed ROCm.
fn runner() -> &'static Result<Vec<String>, String> {
    static RUNNER: OnceLock<Result<Vec<String>, String>> = OnceLock::new();
    RUNNER.get_or_init(|| {
        let mut prefixes: Vec<PathBuf> = std::env::var_os("GRAPHC_ROCM").into_iter().map(PathBuf::from).collect();
        prefixes.push("/opt/graphc-rocm".into());
        for prefix in &prefixes {
            let run = prefix.join("rocm-run");
            if run.is_file() {
                return Ok(vec![run.display().to_string()]);
            }
        }
        let library = ["/opt/rocm/lib/libhiprtc.so", "/usr/lib/x86_64-linux-gnu/libhiprtc.so"];
        if library.iter().any(|path| Path::new(path).exists()) {
            return Ok(Vec::new());
        }
        Err("no ROCm found; set GRAPHC_ROCM to a prefix with rocm-run".into())
    })
}

/// A compiled source: the code object's bytes and its disassembly.
#[derive(Clone)]
pub struct Compiled {
    pub code: Vec<u8>,
    pub listing: Listing,
}

/// Compiles with real hiprtc, or takes the result of an earlier run.
pub fn compile(source: &str, arch: &str, options: &[&str]) -> Result<Compiled, NoCode> {
    let key = blake3::hash(format!("2 {arch} {options:?}\n{source}").as_bytes()).to_hex();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emu-cache");
    std::fs::create_dir_all(&folder).expect("the cache folder can be made");
    let base = folder.join(key.as_str());
    let (code, listing, refused) = (
        base.with_extension("co"),
        base.with_extension("lst"),
        base.with_extension("err"),
    );
    if let Ok(log) = std::fs::read_to_string(&refused) {
        return Err(NoCode::Refused(log));
    }
    if !code.exists() {
        let runner = runner().as_ref().map_err(|reason| NoCode::Skipped(reason.clone()))?;
        // A name of its own, so that test processes that compile the same source do not meet.
        let scratch = folder.join(format!(
            "{key}-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let (source_path, out) = (scratch.with_extension("hip"), scratch.display().to_string());
        std::fs::write(&source_path, source).expect("the source can be written");
        let mut words: Vec<String> = runner.clone();
        words.push(env!("CARGO_BIN_EXE_emu-hiprtc-worker").to_string());
        words.extend([source_path.display().to_string(), arch.to_string(), out.clone()]);
        words.extend(options.iter().map(|option| option.to_string()));
        let output = Command::new(&words[0]).args(&words[1..]).output();
        let _ = std::fs::remove_file(&source_path);
        let output = output.map_err(|error| NoCode::Skipped(format!("{}: {error}", words[0])))?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.code() == Some(3) {
                return Err(NoCode::Skipped(log));
            }
            // A clean refusal is kept; a crash of the compiler counts as one too.
            std::fs::write(&refused, &log).expect("the log can be written");
            return Err(NoCode::Refused(log));
        }
        std::fs::rename(format!("{out}.lst"), &listing).expect("the listing moves into the cache");
        std::fs::rename(format!("{out}.co"), &code).expect("the code object moves into the cache");
    }
    let text = std::fs::read_to_string(&listing).expect("the listing is in the cache");
    Ok(Compiled {
        code: std::fs::read(&code).expect("the code object is in the cache"),
        listing: Listing::parse(&text).expect("the listing was printed by us"),
    })
}

/// The fault that a launch has to end in.
pub fn fault(result: Result<Counters, LaunchError>) -> Fault {
    match result {
        Err(LaunchError::Fault(fault)) => *fault,
        other => panic!("a fault was expected, not {other:?}"),
    }
}

/// Overwrites instructions of `kernel` that start with `what` by `s_nop 0`, in the code object and its listing.
pub fn drop_instructions(compiled: &Compiled, kernel: &str, what: &str) -> (Compiled, usize) {
    replace_instructions(compiled, kernel, |_, line| line.text.starts_with(what))
}

/// The same for the instructions that `which` chooses, given the whole listing and the line.
pub fn replace_instructions(
    compiled: &Compiled,
    kernel: &str,
    which: impl Fn(&Listing, &Line) -> bool,
) -> (Compiled, usize) {
    rewrite_instructions(compiled, kernel, |listing, line| {
        which(listing, line).then(|| (0xbf80_0000, "s_nop 0".to_owned()))
    })
}

/// Overwrites instructions of four bytes by what `new` gives for them: the word and its text.
pub fn rewrite_instructions(
    compiled: &Compiled,
    kernel: &str,
    new: impl Fn(&Listing, &Line) -> Option<(u32, String)>,
) -> (Compiled, usize) {
    let mut patched = compiled.clone();
    let (text_address, text_offset, range) = {
        let file = object::File::parse(&*compiled.code).expect("an ELF file");
        let text = file.section_by_name(".text").expect("code");
        let offset = text.file_range().expect("code in the file").0;
        let object = CodeObject::load(&compiled.code).expect("it loads");
        let symbol = &object.symbols()[kernel];
        (text.address(), offset, symbol.address..symbol.address + symbol.size)
    };
    let mut count = 0;
    for line in compiled.listing.lines() {
        if !range.contains(&line.address) || line.size != 4 {
            continue;
        }
        if let Some((word, text)) = new(&compiled.listing, line) {
            let at = (line.address - text_address + text_offset) as usize;
            patched.code[at..at + 4].copy_from_slice(&word.to_le_bytes());
            assert!(patched.listing.patch(line.address, &text));
            count += 1;
        }
    }
    (patched, count)
}

/// A source's code object; None (and a printed line) where there is no ROCm.
pub fn compiled(source: &str, arch: &str) -> Option<Compiled> {
    match compile(source, arch, &["-O3"]) {
        Ok(compiled) => Some(compiled),
        Err(NoCode::Skipped(reason)) => {
            println!("skipped: {reason}");
            None
        }
        Err(error) => panic!("{arch}: {error:?}"),
    }
}

/// One argument of a launch.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    Ptr(u64),
    I32(i32),
    U32(u32),
    I64(i64),
    F32(f32),
    F64(f64),
}

impl Arg {
    fn bytes(self) -> Vec<u8> {
        match self {
            Arg::Ptr(value) => value.to_le_bytes().to_vec(),
            Arg::I32(value) => value.to_le_bytes().to_vec(),
            Arg::U32(value) => value.to_le_bytes().to_vec(),
            Arg::I64(value) => value.to_le_bytes().to_vec(),
            Arg::F32(value) => value.to_le_bytes().to_vec(),
            Arg::F64(value) => value.to_le_bytes().to_vec(),
        }
    }
}

/// A GPU with one code object on it.
pub struct Device {
    pub gpu: Gpu,
    pub module: Module,
    pub options: LaunchOptions,
}

impl Device {
    /// Compiles a source and loads it; None (and a printed line) where there is no ROCm.
    pub fn new(source: &str, arch: &str) -> Option<Device> {
        match Device::try_new(source, arch, &[]) {
            Ok(device) => Some(device),
            Err(NoCode::Skipped(reason)) => {
                println!("skipped: {reason}");
                None
            }
            Err(NoCode::Refused(log)) => panic!("{arch}: the compiler refused the source:\n{log}"),
        }
    }

    pub fn try_new(source: &str, arch: &str, options: &[&str]) -> Result<Device, NoCode> {
        let mut words = vec!["-O3"];
        words.extend(options);
        let compiled = compile(source, arch, &words)?;
        Ok(Device::load(&compiled, arch))
    }

    pub fn load(compiled: &Compiled, arch: &str) -> Device {
        let gpu = Gpu::new(Arch::by_name(arch).expect("a known arch"), 16 << 30);
        let object = CodeObject::load_for(&compiled.code, gpu.arch()).expect("the code object loads");
        let module = gpu
            .load(object, Arc::new(compiled.listing.clone()))
            .expect("the module loads");
        Device {
            gpu,
            module,
            options: LaunchOptions::default(),
        }
    }

    pub fn arch(&self) -> &'static str {
        self.gpu.arch().name
    }

    pub fn kernel(&self, name: &str) -> Kernel {
        self.module
            .kernel(name)
            .unwrap_or_else(|error| panic!("{}: {error}", self.arch()))
    }

    /// Puts values into new device memory.
    pub fn upload<T: Copy>(&self, values: &[T]) -> u64 {
        // SAFETY: the tests' value types are plain numbers without padding.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        let address = self.gpu.memory().alloc(bytes.len() as u64).expect("memory");
        self.gpu.memory().write(address, bytes).expect("in bounds");
        address
    }

    /// New device memory that nothing wrote.
    pub fn alloc(&self, bytes: usize) -> u64 {
        self.gpu.memory().alloc(bytes as u64).expect("memory")
    }

    /// Reads values back.
    pub fn download<T: Copy + Default>(&self, address: u64, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        // SAFETY: any bytes are a valid plain number.
        let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast::<u8>(), size_of::<T>() * count) };
        self.gpu.memory().read(address, bytes).expect("in bounds");
        values
    }

    pub fn try_run(&self, name: &str, grid: u32, block: u32, args: &[Arg]) -> Result<Counters, LaunchError> {
        self.try_run3(name, [grid, 1, 1], [block, 1, 1], args, 0)
    }

    pub fn try_run3(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        args: &[Arg],
        lds: u32,
    ) -> Result<Counters, LaunchError> {
        let kernel = self.kernel(name);
        let bytes = argument_bytes(&kernel, args);
        self.gpu.launch(&kernel, grid, block, &bytes, lds, &self.options)
    }

    /// The predicted time of a launch.
    pub fn time(&self, name: &str, grid: u32, block: u32, lds: u32, args: &[Arg], timing: &TimingOptions) -> Report {
        self.time3(name, [grid, 1, 1], [block, 1, 1], lds, args, timing)
    }

    pub fn time3(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        lds: u32,
        args: &[Arg],
        timing: &TimingOptions,
    ) -> Report {
        let kernel = self.kernel(name);
        let bytes = argument_bytes(&kernel, args);
        let items = std::array::from_fn(|axis| grid[axis] * block[axis]);
        self.gpu
            .time(&kernel, items, block, &bytes, lds, timing)
            .unwrap_or_else(|error| panic!("{}: {name}: {error}", self.arch()))
    }

    pub fn run(&self, name: &str, grid: u32, block: u32, args: &[Arg]) -> Counters {
        self.try_run(name, grid, block, args)
            .unwrap_or_else(|error| panic!("{}: {name}: {error}", self.arch()))
    }
}

/// The argument block of a launch.
fn argument_bytes(kernel: &Kernel, args: &[Arg]) -> Vec<u8> {
    let name = &kernel.info().name;
    let layout: Vec<_> = kernel.info().args.iter().filter(|arg| !arg.hidden()).collect();
    assert_eq!(layout.len(), args.len(), "{name} takes {layout:?}");
    let mut bytes = vec![0u8; kernel.info().explicit_size() as usize];
    for (slot, arg) in layout.iter().zip(args) {
        let value = arg.bytes();
        assert_eq!(value.len(), slot.size as usize, "{name}: {slot:?}");
        bytes[slot.offset as usize..][..value.len()].copy_from_slice(&value);
    }
    bytes
}

/// A small generator of random numbers, the same on each run.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in [low, high).
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }
}

/// A binary floating format: stored mantissa bits, smallest normal exponent, largest exponent.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub mantissa: i32,
    pub min_exponent: i32,
    pub max_exponent: i32,
}

pub const F16: Format = Format {
    mantissa: 10,
    min_exponent: -14,
    max_exponent: 15,
};
pub const BF16: Format = Format {
    mantissa: 7,
    min_exponent: -126,
    max_exponent: 127,
};
pub const F32: Format = Format {
    mantissa: 23,
    min_exponent: -126,
    max_exponent: 127,
};
pub const F64: Format = Format {
    mantissa: 52,
    min_exponent: -1022,
    max_exponent: 1023,
};

impl Format {
    /// The distance of neighbours near `value`.
    pub fn ulp(self, value: f64) -> f64 {
        let exponent = if value == 0.0 {
            self.min_exponent
        } else {
            value.abs().log2().floor() as i32
        };
        2f64.powi(exponent.max(self.min_exponent) - self.mantissa)
    }

    /// Rounds to nearest even.
    pub fn round(self, value: f64) -> f64 {
        if !value.is_finite() || value == 0.0 || self.mantissa == 52 {
            return value;
        }
        let ulp = self.ulp(value);
        let rounded = (value / ulp).round_ties_even() * ulp;
        let limit = 2f64.powi(self.max_exponent + 1);
        if rounded.abs() >= limit {
            f64::INFINITY.copysign(value)
        } else {
            rounded.copysign(value)
        }
    }
}

/// Whether `got` is within `ulps` of `want` in `format`; NaN equals NaN, infinities equal themselves.
pub fn close(got: f64, want: f64, format: Format, ulps: f64) -> bool {
    if got.is_nan() || want.is_nan() {
        return got.is_nan() && want.is_nan();
    }
    let rounded = format.round(want);
    if got == rounded {
        return true;
    }
    if !rounded.is_finite() || !got.is_finite() {
        // An overflow may be off by an ulp in either direction.
        let largest = 2f64.powi(format.max_exponent + 1);
        return ulps > 0.0
            && got.signum() == want.signum()
            && (want.abs() > largest * 0.999_999 || got.is_infinite() && rounded.abs() > largest * 0.999_99);
    }
    (got - want).abs() <= (ulps + 0.5) * format.ulp(want)
}
