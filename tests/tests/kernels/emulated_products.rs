//! The device library's matrix kernels on emulated GPUs: every instruction of every arch, compiled by the real hiprtc,
//! on sizes that cut tiles on every side and with NaN beyond the operands' ends. Products of small integers, so that
//! they are exact.

use crate::products::{OnGpu, Random, cases};
use graphc::emu::{Arch, CodeObject, Gpu, LaunchOptions};
use graphc_tests::emulator::toolchain;
use runtime::code_object;
use runtime::compile::{CompileRequest, compile_all};

fn headers() -> Vec<(String, String)> {
    let headers = codegen_hip::device::headers().iter();
    headers.map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect()
}

fn request(name: &str, source: String, arch: &str) -> CompileRequest {
    CompileRequest {
        name: name.to_owned(),
        source,
        headers: headers(),
        arch: arch.to_owned(),
        options: ["-O3", "-std=c++17"].map(str::to_owned).to_vec(),
    }
}

fn check(arch: &str) {
    let Some(tools) = toolchain() else { return };
    let tilings = cases::of(arch);
    let requests: Vec<_> = tilings.iter().map(|t| request("product", t.source(), arch)).collect();
    let mut wrong = Vec::new();
    for (tiling, object) in tilings.iter().zip(compile_all(&tools.compiler, &requests, &|_| ())) {
        let what = format!("{tiling:?}");
        let code = object.unwrap_or_else(|e| panic!("{what}: {e}")).bytes;
        let kernel = &code_object::read(&code)
            .unwrap_or_else(|e| panic!("{what}: {e}"))
            .kernels[0];
        if kernel.vgpr_spills > 0 || kernel.scratch_bytes > 0 {
            wrong.push(format!("{what}: spills"));
        }
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let on_gpu = OnGpu::load(tiling, arch, &code, &tools.disassembler).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (i, size) in cases::sizes(tiling).into_iter().enumerate() {
            // The second size, cut on all sides, is also run with waves' races looked for.
            if let Err(error) = on_gpu.check(size, i == 1, &mut random) {
                wrong.push(format!("{what}: {error}"));
            }
        }
    }
    println!("{} tilings on {arch}", tilings.len());
    assert!(wrong.is_empty(), "{} of {arch}\n{}", wrong.len(), wrong.join("\n"));
}

/// The order of workgroups: groups of 1, 4, 6 and 8 rows, on one die and on eight.
const ORDERS: [(i32, i32); 6] = [(1, 1), (4, 1), (8, 1), (4, 8), (6, 8), (8, 8)];

#[test]
fn every_tile_is_one_workgroups() {
    let Some(tools) = toolchain() else { return };
    let kernels = ORDERS.map(|(group, dies)| {
        format!(
            "extern \"C\" __global__ void order_{group}_{dies}(int* taken, int tiles_m, int tiles_n) {{\n\
             \x20   const TilePlace at = tile_of<{group}, {dies}>((int)blockIdx.x, tiles_m, tiles_n);\n\
             \x20   if (threadIdx.x == 0) atomicAdd(&taken[at.m * tiles_n + at.n], 1 + (int)blockIdx.x % {dies} * 256);\n}}\n"
        )
    });
    let source = format!(
        "#include \"graphc_gemm.hip.h\"\nusing namespace graphc;\n{}",
        kernels.concat()
    );
    let object = compile_all(&tools.compiler, &[request("orders", source, "gfx90a")], &|_| ()).remove(0);
    let code = object.unwrap_or_else(|e| panic!("{e}")).bytes;
    let gpu = Gpu::new(Arch::by_name("gfx90a").expect("an arch"), 1 << 24);
    let object = CodeObject::load_for(&code, gpu.arch()).expect("it loads");
    let module = gpu.load(object, tools.disassembler.clone()).expect("it loads");
    let mut random = Random(7);
    let sizes = (0..20).map(|_| [random.below(40) as usize + 1, random.below(40) as usize + 1]);
    for [m, n] in sizes.chain([[1, 1], [1, 700], [700, 1], [4, 64], [64, 64], [8, 64], [33, 31]]) {
        for (group, dies) in ORDERS {
            let kernel = module.kernel(&format!("order_{group}_{dies}")).expect("the kernel");
            let taken = gpu.memory().alloc((m * n * 4) as u64).expect("memory");
            gpu.memory().write(taken, &vec![0; m * n * 4]).expect("in bounds");
            let mut args = taken.to_le_bytes().to_vec();
            args.extend([m as i32, n as i32].iter().flat_map(|v| v.to_le_bytes()));
            let grid = [(m * n) as u32, 1, 1];
            gpu.launch(&kernel, grid, [64, 1, 1], &args, 0, &LaunchOptions::default())
                .unwrap_or_else(|e| panic!("{m}x{n} by {group} on {dies}: {e}"));
            let mut bytes = vec![0; m * n * 4];
            gpu.memory().read(taken, &mut bytes).expect("in bounds");
            let what = format!("{m}x{n} by {group} on {dies}");
            // How often each tile was taken, and the sum of the dies that took it.
            let tiles: Vec<[u8; 4]> = bytes.chunks(4).map(|tile| [0, 1, 2, 3].map(|i| tile[i])).collect();
            let once = |[count, die, high, highest]: &[u8; 4]| {
                [*count, *high, *highest] == [1, 0, 0] && i32::from(*die) < dies
            };
            assert!(tiles.iter().all(once), "{what}: a tile is left out or taken twice");
            // A column of tiles is one die's, whose L2 then brings each weight once, also where tiles are too few for
            // runs of full length.
            if group == 6 && [m, n] == [4, 64] {
                let of_first_row = tiles.iter().cycle().take(n);
                let shared = tiles.chunks(n).any(|row| row.iter().ne(of_first_row.clone()));
                assert!(!shared, "{what}: dies share columns");
            }
        }
    }
}

#[test]
fn products_on_gfx906() {
    check("gfx906");
}

#[test]
fn products_on_gfx908() {
    check("gfx908");
}

#[test]
fn products_on_gfx90a() {
    check("gfx90a");
}

#[test]
fn products_on_gfx942() {
    check("gfx942");
}

#[test]
fn products_on_gfx950() {
    check("gfx950");
}

#[test]
fn products_on_gfx1030() {
    check("gfx1030");
}

#[test]
fn products_on_gfx1100() {
    check("gfx1100");
}

#[test]
fn products_on_gfx1201() {
    check("gfx1201");
}
