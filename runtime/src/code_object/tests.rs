//! A code object of the real compiler, kept in the repository; cuts and damage of it; noise.

use proptest::prelude::*;

use super::*;

/// `scale` (an LDS reduction) and `copy` for gfx90a:xnack-, by hiprtc 7.2; `tests/hiprtc.rs` says how it was made.
const GFX90A: &[u8] = include_bytes!("fixtures/gfx90a.co");

#[test]
fn the_resources_of_a_real_code_object() {
    let object = read(GFX90A).unwrap();
    assert_eq!(object.target, "gfx90a:xnack-");
    let names: Vec<&str> = object.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["scale", "copy"]);
    let scale = &object.kernels[0];
    assert_eq!(
        (scale.wave_size, scale.lds_bytes, scale.max_workgroup_size),
        (64, 1024, 256)
    );
    assert_eq!((scale.vgpr_spills, scale.sgpr_spills, scale.scratch_bytes), (0, 0, 0));
    assert!(
        scale.vgpr > 0 && scale.sgpr > 0 && scale.code_bytes > 0 && scale.kernarg_bytes >= 16,
        "{scale:?}"
    );
    let args: Vec<_> = scale
        .args
        .iter()
        .filter(|arg| !arg.is_hidden())
        .map(|arg| (arg.offset, arg.size))
        .collect();
    assert_eq!(args, [(0, 8), (8, 8), (16, 4)]);
    let code = kernel_code(GFX90A).unwrap();
    let lengths: Vec<_> = code
        .iter()
        .map(|kernel| (kernel.name.as_str(), kernel.bytes.len() as u64))
        .collect();
    assert_eq!(
        lengths,
        [("scale", scale.code_bytes), ("copy", object.kernels[1].code_bytes)]
    );
}

/// A block's sum in shared memory (`scale`) and `copy` for sm_90, by NVRTC 12.9 and 13.5.
const SM_90: [&[u8]; 2] = [
    include_bytes!("fixtures/sm_90.cuda12.cubin"),
    include_bytes!("fixtures/sm_90.cuda13.cubin"),
];

/// The numbers are those of `ptxas -v`.
#[test]
fn the_resources_of_real_cubins() {
    for cubin in SM_90 {
        assert!(is_cubin(cubin) && !is_cubin(GFX90A));
        let object = read(cubin).unwrap();
        assert_eq!(object.target, "sm_90");
        let of = |name: &str| object.kernels.iter().find(|kernel| kernel.name == name).unwrap();
        let numbers = |k: &KernelResources| (k.vgpr, k.lds_bytes, k.scratch_bytes, k.wave_size, k.max_workgroup_size);
        assert_eq!(numbers(of("scale")), (12, 1024, 0, 32, 256));
        assert_eq!(numbers(of("copy")), (10, 0, 0, 32, 256));
        for kernel in &object.kernels {
            let args: Vec<_> = kernel.args.iter().map(|arg| (arg.offset, arg.size)).collect();
            assert_eq!((kernel.kernarg_bytes, args), (20, vec![(0, 8), (8, 8), (16, 4)]));
            let code = kernel_code(cubin).unwrap();
            let code = code.iter().find(|code| code.name == kernel.name).unwrap();
            assert!(kernel.code_bytes > 0 && code.bytes.len() as u64 == kernel.code_bytes);
        }
    }
}

#[test]
fn every_cut_is_an_error() {
    // Headers lie at the end of the file, so no proper prefix is whole.
    for whole in [GFX90A, SM_90[0], SM_90[1]] {
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "cut at {length}");
        }
    }
}

#[test]
fn foreign_files_are_named_so() {
    assert!(matches!(read(b""), Err(CodeObjectError::Elf { .. })));
    assert!(matches!(
        read(b"MZ this is a Windows program"),
        Err(CodeObjectError::Elf { .. })
    ));
    let host = std::fs::read("/proc/self/exe").unwrap();
    assert!(
        matches!(read(&host), Err(CodeObjectError::ForeignMachine { .. })),
        "this very test program"
    );
    let mut renamed = GFX90A.to_vec();
    let at = renamed.windows(6).position(|bytes| bytes == b"AMDGPU").unwrap();
    renamed[at] = b'X';
    assert_eq!(read(&renamed), Err(CodeObjectError::NoMetadata));
    let mut damaged = GFX90A.to_vec();
    let at = damaged.windows(11).position(|bytes| bytes == b".vgpr_count").unwrap();
    damaged[at] = b'X';
    assert!(matches!(read(&damaged), Err(CodeObjectError::Metadata { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let _ = read(&bytes);
    }

    #[test]
    fn noise_behind_an_elf_header_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 64..2048)) {
        bytes[..20].copy_from_slice(&GFX90A[..20]);
        let _ = read(&bytes);
    }

    #[test]
    fn a_damaged_code_object_never_panics(changes in proptest::collection::vec((0..GFX90A.len(), any::<u8>()), 1..16)) {
        let mut bytes = GFX90A.to_vec();
        for (at, value) in changes {
            bytes[at] = value;
        }
        let _ = read(&bytes);
        let _ = kernel_code(&bytes);
    }

    #[test]
    fn a_damaged_cubin_never_panics(changes in proptest::collection::vec((0..SM_90[1].len(), any::<u8>()), 1..16)) {
        for cubin in SM_90 {
            let mut bytes = cubin.to_vec();
            for (at, value) in &changes {
                if let Some(byte) = bytes.get_mut(*at) {
                    *byte = *value;
                }
            }
            let _ = read(&bytes);
            let _ = kernel_code(&bytes);
        }
    }

    #[test]
    fn noise_as_metadata_never_panics(note in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = metadata::decode(&note);
    }
}
