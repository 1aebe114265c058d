//! The text of one kernel of each kind.

mod kernels;

use ir::{Symbol, SymbolInfo, Symbols, Target};

#[test]
fn generated_text() {
    let symbols: Symbols = ["rows", "seq"]
        .map(|name| (Symbol::new(name), SymbolInfo::default()))
        .into_iter()
        .collect();
    let target: Target = "gfx90a".parse().expect("a target of the table");
    let shown = [
        "pointwise_0",
        "flat_0",
        "concat_4",
        "softmax_symbolic",
        "softmax_5",
        "layer_norm_1",
        "folds_block_0",
        "pool",
        "contract_1_f16",
        "conv_groups",
        "patches_4_8",
        "pixels_4_5",
        "attention_2",
        "scan_block_1",
        "top_k_2",
        "update_1",
    ];
    let all = kernels::all();
    for name in shown {
        let kernel = all.iter().find(|k| k.name == name).expect("a kernel of the list");
        let source = graphc_codegen_hip::emit_kernel(kernel, &symbols, &target, &[]).expect("a kernel that prints");
        insta::assert_snapshot!(name, source.text);
    }
}

/// A product by the instructions of warp groups, for which its compiler is asked by the architecture's other name.
#[test]
fn text_of_warp_groups() {
    let target: Target = "sm_90".parse().expect("a target of the table");
    let mut kernel = kernels::all()
        .into_iter()
        .find(|k| k.name == "contract_5_f16")
        .expect("a kernel of the list");
    let wide = ir::kernel::Fetch {
        along_k: true,
        width: 8,
    };
    let instruction = target.matrix.iter().find(|i| i.waves() == 4 && i.n == 64);
    kernel.mapping = ir::kernel::Mapping::Matrix(ir::kernel::Tiling {
        instruction: *instruction.expect("it has warp groups"),
        block: [128, 64, 64],
        waves: [2, 1],
        parts: 1,
        stages: 4,
        travel: ir::kernel::Travel::Direct,
        ahead: true,
        lhs: wide,
        rhs: wide,
        store: 8,
        group: 6,
        dies: 1,
        resident: None,
        shares: None,
    });
    assert!(ir::kernel::verify::verify(&kernel).is_ok());
    assert_eq!(ir::kernel::limits::check(&kernel, &Symbols::new(), &target), []);
    let source = graphc_codegen_hip::emit_kernel(&kernel, &Symbols::new(), &target, &[]).expect("a kernel that prints");
    let named = |option: &&String| option.starts_with("--gpu-architecture");
    assert_eq!(
        source.options.iter().find(named).map(String::as_str),
        Some("--gpu-architecture=sm_90a")
    );
    insta::assert_snapshot!("warp_groups", source.text);
}

/// A product whose tiles workgroups share: its own memory comes last.
#[test]
fn text_of_shared_tiles() {
    let target: Target = "gfx942".parse().expect("a target of the table");
    let mut kernel = kernels::all()
        .into_iter()
        .find(|k| k.name == "contract_5_f16")
        .expect("a kernel of the list");
    let instruction = target.matrix.iter().find(|i| (i.m, i.input) == (16, ir::DType::F16));
    let wide = ir::kernel::Fetch {
        along_k: true,
        width: 8,
    };
    let tiling = ir::kernel::Tiling {
        instruction: *instruction.expect("it has one"),
        block: [32, 32, 32],
        waves: [1, 1],
        parts: 1,
        stages: 2,
        travel: ir::kernel::Travel::Registers,
        ahead: true,
        lhs: wide,
        rhs: wide,
        store: 4,
        group: 6,
        dies: 8,
        resident: None,
        shares: Some(ir::kernel::Shares { groups: 3, tiles: 2 }),
    };
    kernel.mapping = ir::kernel::Mapping::Matrix(tiling.clone());
    assert!(
        ir::kernel::verify::verify(&kernel).is_err(),
        "it has no memory of its own"
    );
    let own = [
        ("sums", ir::DType::F32, 5 * 32 * 32, ir::kernel::Access::Scratch),
        ("tickets", ir::DType::I32, 2, ir::kernel::Access::Tickets),
    ];
    for (name, dtype, elements, access) in own {
        kernel.params.push(ir::kernel::Param {
            name: name.to_owned(),
            dtype,
            elements: ir::Dim::Const(elements),
            access,
        });
    }
    assert_eq!(ir::kernel::verify::verify(&kernel), Ok(()));
    let mut many = kernel.clone();
    many.mapping = ir::kernel::Mapping::Matrix(ir::kernel::Tiling {
        shares: Some(ir::kernel::Shares { groups: 3, tiles: 4000 }),
        ..tiling
    });
    assert!(ir::kernel::verify::verify(&many).is_err(), "there are fewer tiles");
    let source = graphc_codegen_hip::emit_kernel(&kernel, &Symbols::new(), &target, &[]).expect("a kernel that prints");
    insta::assert_snapshot!("shared_tiles", source.text);
}

#[test]
fn a_mapping_that_does_not_go_with_the_body_is_an_error() {
    let mut kernel = kernels::all()
        .into_iter()
        .find(|k| k.name == "attention_0")
        .expect("a kernel of the list");
    kernel.mapping = ir::kernel::Mapping::Threads { block: 64, vector: 1 };
    let target: Target = "gfx90a".parse().expect("a target of the table");
    let error = graphc_codegen_hip::emit_kernel(&kernel, &Symbols::new(), &target, &[]);
    assert!(
        matches!(error, Err(graphc_codegen_hip::EmitError::Mapping { .. })),
        "{error:?}"
    );
}

/// Four lanes a point are four times the threads: what counts them must hold those, not the points alone.
#[test]
fn threads_of_lanes_are_counted_in_a_type_that_holds_them() {
    let target: Target = "gfx90a".parse().expect("a target of the table");
    for (rows, kind) in [(1 << 28, "int"), ((1 << 28) + 1, "i64")] {
        let lanes = ir::kernel::Mapping::Lanes {
            lanes: 4,
            block: 64,
            vector: 1,
        };
        let kernel = kernels::rows::folds("many", ir::DType::F32, &[ir::op::ReduceOp::Sum], rows, 8, lanes);
        let source = graphc_codegen_hip::emit_kernel(&kernel, &Symbols::new(), &target, &[]).expect("prints");
        let start = format!("for ({kind} row = global_thread<{kind}>() / 4; row < {rows}");
        assert!(source.text.contains(&start), "{}", source.text);
    }
}

/// Each op of a model rounds its result: only what is spelled as one operation is one.
#[test]
fn compilers_fuse_no_multiply_add_by_themselves() {
    let all = kernels::all();
    for (target, option) in [("gfx1100", "-ffp-contract=off"), ("sm_90", "--fmad=false")] {
        let target: Target = target.parse().expect("a target of the table");
        let source = graphc_codegen_hip::emit_kernel(&all[0], &Symbols::new(), &target, &[]).expect("it prints");
        assert!(source.options.iter().any(|o| o == option), "{:?}", source.options);
    }
}
