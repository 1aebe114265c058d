//! Products whose workgroups share out the depth of tiles (stream-K), on emulated GPUs: random sizes, types, tilings
//! and shares beside the evaluator, the same bytes whoever comes first, and faults that must not pass.

use graphc::driver::{self, BuildOptions};
use graphc::emu::LaunchOptions;
use graphc::emulate::{CheckedKernel, EmulateError, Subject, check_kernel};
use graphc::passes::{OptLevel, lower, tuning};
use graphc_tests::emulator::{Tally, Toolchain, toolchain};
use graphc_tests::reference::{assert_matches, random_inputs};
use ir::graph::eval::evaluate;
use ir::graph::parse::parse;
use ir::kernel::{Access, Body, Kernel, Mapping, Shares, limits, verify};
use ir::program::Source;
use ir::target::MatrixFamily;
use ir::{Bindings, DType, HostTensor, Symbols, Target};
use runtime::code_object;
use runtime::compile::{CompileRequest, compile_all};

/// A small generator of random numbers, the same on each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    pub(crate) fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// The text of a random product in a type.
pub(crate) fn text(dtype: &str, random: &mut Random) -> String {
    let align = *random.one(&[1, 8, 16]);
    let mut size = |least: usize, most: usize| (least + random.below(most - least)).div_ceil(align) * align;
    let (m, n, k) = (size(40, 330), size(40, 330), size(200, 900));
    let (transpose_lhs, transpose_rhs) = (random.below(2) == 1, random.below(2) == 1);
    let (lhs, rhs) = (
        if transpose_lhs { [k, m] } else { [m, k] },
        if transpose_rhs { [n, k] } else { [k, n] },
    );
    let sums = match dtype {
        "i8" => Some("out=i32"),
        "f8e4m3fn" => Some("out=f32"),
        _ => None,
    };
    let flags: Vec<&str> = [(transpose_lhs, "transpose_lhs"), (transpose_rhs, "transpose_rhs")]
        .into_iter()
        .filter_map(|(is, flag)| is.then_some(flag))
        .chain(sums)
        .collect();
    let head = format!(
        " x = input \"x\" : {dtype}{lhs:?}\n w = input \"w\" : {dtype}{rhs:?}\n p = contract x, w {{{}}}\n",
        flags.join(", ")
    );
    let follows = match (sums, random.below(3)) {
        (Some(_), _) | (_, 0) => " y = relu p\n".to_owned(),
        (_, 1) => format!(" b = input \"b\" : {dtype}[{n}]\n q = add p, b\n y = gelu q\n"),
        _ => format!(
            " b = input \"b\" : {dtype}[{n}]\n r = input \"r\" : {dtype}[{m}, {n}]\n q = add p, b\n g = gelu q\n y = add g, r\n"
        ),
    };
    format!("graph @shared stage=import {{\n{head}{follows} return y as \"y\"\n}}\n")
}

/// A product of a plan, not cut.
pub(crate) fn product(text: &str, arch: &str) -> (Kernel, Target) {
    let graph = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let target: Target = arch.parse().expect("a target of the table");
    let mut options = BuildOptions::new(vec![target], OptLevel::O2);
    options.optimize.libraries = false;
    options.plan.parts = false;
    let built = driver::build(&graph, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
    let plan = &built.program.variants[0].plan;
    let mut kernels = plan.kernels.values();
    let kernel = kernels.find(|k| matches!(k.body, Body::Contract(_)));
    (kernel.expect("a product").clone(), target)
}

/// Gives a product a random tiling whose tiles are shared at random.
fn share(kernel: &Kernel, target: &Target, random: &mut Random) -> Option<Kernel> {
    let Body::Contract(body) = &kernel.body else {
        return None;
    };
    let extent = |axes: &[ir::kernel::AxisId]| {
        axes.iter()
            .map(|a| kernel.axes[*a].extent.hint(&Symbols::new()))
            .product()
    };
    let (m, n, k): (i64, i64, i64) = (extent(&body.m), extent(&body.n), extent(&body.k));
    let tiles = |block: [u32; 3]| (m as u64).div_ceil(block[0].into()) * (n as u64).div_ceil(block[1].into());
    let all = tuning::candidates(kernel, &Symbols::new(), target).into_iter();
    let mut tilings: Vec<_> = all
        .filter_map(|mapping| match mapping {
            Mapping::Matrix(t) if matches!(t.instruction.family, MatrixFamily::Mfma | MatrixFamily::Wmma) => Some(t),
            _ => None,
        })
        .filter(|t| t.parts == 1 && !t.loads_to_lds() && tiles(t.block) >= 3 && lower::mapping::may_share(t, target))
        .collect();
    if tilings.is_empty() {
        return None;
    }
    let mut tiling = tilings.swap_remove(random.below(tilings.len()));
    let there = tiles(tiling.block).min(20) as usize;
    let tiles = 1 + random.below(there);
    let steps = tiles as u64 * (k as u64).div_ceil(tiling.block[2].into());
    let groups = (2 + random.below(11)).min(steps as usize);
    tiling.shares = Some(Shares {
        groups: groups as u32,
        tiles: tiles as u32,
    });
    lower::shared(kernel.clone(), Mapping::Matrix(tiling)).map(|shared| shared.kernel)
}

pub(crate) fn emit(kernel: &Kernel, target: &Target) -> Source {
    verify::verify(kernel).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(limits::check(kernel, &Symbols::new(), target), []);
    codegen_hip::emit_kernel(kernel, &Symbols::new(), target, &[]).unwrap_or_else(|e| panic!("{e}"))
}

/// Compiles kernels, with a device library in which `change` has changed a text.
pub(crate) fn compile(
    tools: &Toolchain,
    sources: &[Source],
    arch: &str,
    change: impl Fn(&str) -> String,
) -> Vec<Vec<u8>> {
    let headers: Vec<(String, String)> = codegen_hip::device::headers()
        .iter()
        .map(|(name, text)| ((*name).to_owned(), change(text)))
        .collect();
    let requests: Vec<_> = sources
        .iter()
        .map(|source| CompileRequest {
            name: source.entry.clone(),
            source: source.text.clone(),
            headers: headers.clone(),
            arch: arch.to_owned(),
            options: source.options.clone(),
        })
        .collect();
    let objects = compile_all(&tools.compiler, &requests, &|_| ());
    objects
        .into_iter()
        .zip(sources)
        .map(|(object, source)| object.unwrap_or_else(|e| panic!("{e}\n{}", source.text)).bytes)
        .collect()
}

pub(crate) fn run(
    tools: &Toolchain,
    arch: &str,
    (kernel, source, code): (&Kernel, &Source, &[u8]),
    options: &LaunchOptions,
) -> Result<CheckedKernel, EmulateError> {
    let mut random = Random(0x5eed);
    let buffers: Vec<HostTensor> = kernel
        .params
        .values()
        .map(|p| {
            let n = p.elements.hint(&Symbols::new()) as usize;
            let values: Vec<f64> = (0..n)
                .map(|_| match (p.access, p.dtype.is_int()) {
                    (Access::Read, true) => random.below(15) as f64 - 7.0,
                    (Access::Read, false) => random.below(65) as f64 / 32.0 - 1.0,
                    _ => 0.0,
                })
                .collect();
            HostTensor::from_f64(p.dtype, [n], &values).expect("as many numbers as elements")
        })
        .collect();
    let bindings = Bindings::new();
    let subject = Subject {
        kernel,
        target: arch,
        source,
        code,
        buffers: &buffers,
        bindings: &bindings,
    };
    check_kernel(&subject, &tools.disassembler, options, None)
}

/// The stored elements.
fn stored(checked: &CheckedKernel) -> Vec<Vec<u8>> {
    checked.results.iter().map(|(got, _)| got.bytes.to_vec()).collect()
}

/// Workgroups one after the other, and what they do to each other's memory looked at.
fn one_by_one(backwards: bool, kernel: &Kernel) -> LaunchOptions {
    let groups = u64::from(kernel.launch_size(&Bindings::new()).expect("sizes").grid[0]);
    LaunchOptions {
        parallel: false,
        group_races: true,
        workgroups: backwards.then(|| (0..groups).rev().collect()),
        ..LaunchOptions::default()
    }
}

fn check(arch: &str, cases: usize) {
    let Some(tools) = toolchain() else { return };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut kernels = Vec::new();
    for case in 0..cases {
        let text = text(["f16", "bf16", "i8", "f16"][case % 4], &mut random);
        let (kernel, target) = product(&text, arch);
        let shared = share(&kernel, &target, &mut random).unwrap_or_else(|| panic!("{arch}: no tiling of {text}"));
        let source = emit(&shared, &target);
        kernels.push((shared, source));
    }
    let sources: Vec<Source> = kernels.iter().map(|(_, source)| source.clone()).collect();
    let codes = compile(&tools, &sources, arch, str::to_owned);
    let mut wrong = Vec::new();
    for (i, ((kernel, source), code)) in kernels.iter().zip(&codes).enumerate() {
        let what = format!("{arch} {}: {}", kernel.name, kernel.mapping);
        for resources in &code_object::read(code).expect("a code object").kernels {
            if (resources.vgpr_spills, resources.scratch_bytes) != (0, 0) {
                wrong.push(format!("{what}: spills"));
            }
        }
        let of = (kernel, source, &code[..]);
        let checked = run(&tools, arch, of, &LaunchOptions::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
        if !checked.verdict.is_within() {
            wrong.push(format!("{what}: {:?}", checked.verdict));
        }
        if i % 4 == 0 {
            for backwards in [false, true] {
                let options = one_by_one(backwards, kernel);
                let again = run(&tools, arch, of, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(
                    stored(&again) == stored(&checked),
                    "{what}: the order of workgroups shows, {backwards}"
                );
            }
        }
    }
    println!("{} products on {arch}", kernels.len());
    assert!(wrong.is_empty(), "{} of {arch}\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn shared_on_gfx90a() {
    check("gfx90a", 12);
}

#[test]
fn shared_on_gfx942() {
    check("gfx942", 12);
}

#[test]
fn shared_on_gfx950() {
    check("gfx950", 12);
}

#[test]
fn shared_on_gfx1100() {
    check("gfx1100", 12);
}

#[test]
fn shared_on_gfx1201() {
    check("gfx1201", 12);
}

/// A product of 3 x 3 tiles of 64 x 64, of which five are shared by seven.
fn planted(target: &str) -> (Kernel, Target) {
    let text = "graph @planted stage=import {\n x = input \"x\" : f16[192, 512]\n w = input \"w\" : f16[512, 192]\n \
                y = contract x, w\n return y as \"y\"\n}\n";
    let (kernel, target) = product(text, target);
    let all = tuning::candidates(&kernel, &Symbols::new(), &target);
    let tiling = all.into_iter().find_map(|mapping| match mapping {
        Mapping::Matrix(t) if t.block == [64, 64, 32] && t.parts == 1 && t.waves == [2, 2] => Some(t),
        _ => None,
    });
    let mut tiling = tiling.expect("a tiling of 64 x 64");
    tiling.shares = Some(Shares { groups: 7, tiles: 5 });
    let shared = lower::shared(kernel, Mapping::Matrix(tiling)).expect("it is a product");
    (shared.kernel, target)
}

/// What a share that is off, sums that are not waited for, and tickets that are not put back do.
#[test]
fn planted_faults_are_found() {
    let Some(tools) = toolchain() else { return };
    for arch in ["gfx90a", "gfx1201"] {
        let (kernel, target) = planted(arch);
        let source = emit(&kernel, &target);
        let of = |from: &'static str, to: &'static str| {
            move |text: &str| {
                if text.contains("gemm_shared") {
                    assert_eq!(text.matches(from).count(), 1, "{from}");
                }
                text.replace(from, to)
            }
        };
        let options = one_by_one(true, &kernel);
        let outcome = |code: &[u8]| run(&tools, arch, (&kernel, &source, code), &options);
        let one = |change: &dyn Fn(&str) -> String| {
            compile(&tools, std::slice::from_ref(&source), arch, change).swap_remove(0)
        };
        let right = outcome(&one(&str::to_owned)).unwrap_or_else(|e| panic!("{arch}: {e}"));
        assert!(right.verdict.is_within(), "{arch}: {:?}", right.verdict);

        let share = of("(SHARED * steps) / GROUPS", "(SHARED * steps - 1) / GROUPS");
        let wait = |text: &str| {
            let text = of("    device_release();\n    lds_barrier();\n", "    lds_barrier();\n")(text);
            text.replace("ticket, 1, __ATOMIC_ACQ_REL", "ticket, 1, __ATOMIC_RELAXED")
        };
        let tickets = of("    if (threadIdx.x == 0) *ticket = 0;\n", "");
        for (what, change) in [
            ("a wrong share", &share as &dyn Fn(&str) -> String),
            ("tickets left", &tickets),
        ] {
            match outcome(&one(change)) {
                Ok(checked) => assert!(!checked.verdict.is_within(), "{arch}: {what} passes"),
                Err(error) => println!("{arch}: {what}: {error}"),
            }
        }
        let error = outcome(&one(&wait))
            .err()
            .unwrap_or_else(|| panic!("{arch}: a missing wait passes"));
        assert!(error.to_string().contains("race"), "{arch}: {error}");
    }
}

/// A row of measurements chooses shared tiles; the plan then has their memory, and puts zeros into the tickets once.
#[test]
fn a_plan_has_the_memory_of_shared_tiles() {
    let Some(tools) = toolchain() else { return };
    let arch = "gfx1201";
    let text = "graph @two stage=import {\n x = input \"x\" : f16[272, 320]\n w = input \"w\" : f16[320, 272]\n \
                b = input \"b\" : f16[272]\n v = input \"v\" : f16[272, 320]\n p = contract x, w\n q = add p, b\n g = gelu q\n \
                y = contract g, v\n return y as \"y\"\n}\n";
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let target: Target = arch.parse().expect("a target of the table");
    let mut options = BuildOptions::new(vec![target], OptLevel::O2);
    options.optimize.libraries = false;
    let plain = driver::build(&graph, &options).unwrap_or_else(|e| panic!("{e}"));
    let plan = &plain.program.variants[0].plan;
    for kernel in plan.kernels.values() {
        let line = tuning::product(kernel, &plan.symbols, &target).expect("a product");
        let sharing = tuning::sharings(kernel, &plan.symbols, &target);
        let mapping = sharing.first().unwrap_or_else(|| panic!("{line}: no tiles to share"));
        options.plan.tuning.insert(line, mapping.to_string());
    }
    let mut built = driver::build(&graph, &options).unwrap_or_else(|e| panic!("{e}"));
    driver::compile(&mut built.program, &tools.compiler, &|_| ()).unwrap_or_else(|e| panic!("{e}"));
    let plan = &built.program.variants[0].plan;
    let names: Vec<&str> = plan.kernels.values().map(|k| k.name.as_str()).collect();
    assert_eq!(plan.launches().0, 3, "{names:?}");
    let shared = |k: &Kernel| matches!(&k.mapping, Mapping::Matrix(t) if t.shares.is_some());
    assert_eq!(plan.kernels.values().filter(|k| shared(k)).count(), 2, "{names:?}");
    let inputs = random_inputs(&graph, &Bindings::new(), 11);
    let outcome = tools.run(&built, &inputs, 1 << 28);
    let mut tally = Tally::default();
    tally.add(arch, &outcome);
    let want = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{e}"));
    assert_matches(&outcome.outputs, &want, DType::F16, arch);
    tally.finish(arch, 3);
}
