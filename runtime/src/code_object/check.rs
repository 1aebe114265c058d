//! Whether a code object is what a plan launches: loaders of GPUs take a file's word for where its parts are, and for
//! what a kernel reads of its argument block.

use object::elf::{SHT_NOBITS, SHT_NULL};
use object::read::elf::{ProgramHeader, SectionHeader};

use super::{CodeObjectError, KernelResources, parse, read};

/// Every argument of a generated kernel is an address or an `i64`.
const ARGUMENT: u32 = 8;

/// Checks that all segments and sections of a code object lie inside it, and that it has a kernel `entry` that takes
/// `arguments` arguments of 8 bytes, one after the other.
///
/// # Errors
/// What is not so.
pub fn check(bytes: &[u8], entry: &str, arguments: usize) -> Result<(), CodeObjectError> {
    check_extents(bytes)?;
    let object = read(bytes)?;
    let kernel = object.kernels.iter().find(|kernel| kernel.name == entry);
    let kernel = kernel.ok_or_else(|| CodeObjectError::NoKernel {
        kernel: entry.to_owned(),
    })?;
    check_arguments(kernel, arguments)
}

fn check_extents(bytes: &[u8]) -> Result<(), CodeObjectError> {
    let (_, elf) = parse(bytes)?;
    let endian = elf.endian();
    let inside = |what: &str, index: usize, start: u64, length: u64| {
        let end = start.checked_add(length);
        match end.is_some_and(|end| end <= bytes.len() as u64) {
            true => Ok(()),
            false => Err(CodeObjectError::Elf {
                reason: format!("{what} {index} is bytes {start}+{length} of {}", bytes.len()),
            }),
        }
    };
    for (index, segment) in elf.elf_program_headers().iter().enumerate() {
        let (start, length) = (segment.p_offset(endian), segment.p_filesz(endian));
        inside("segment", index, start, length)?;
        if length > segment.p_memsz(endian) {
            return Err(CodeObjectError::Elf {
                reason: format!(
                    "segment {index} has {length} bytes in the file and {} in memory",
                    segment.p_memsz(endian)
                ),
            });
        }
    }
    for (index, section) in elf.elf_section_table().iter().enumerate() {
        if !matches!(section.sh_type(endian), SHT_NOBITS | SHT_NULL) {
            inside("section", index, section.sh_offset(endian), section.sh_size(endian))?;
        }
    }
    Ok(())
}

fn check_arguments(kernel: &KernelResources, arguments: usize) -> Result<(), CodeObjectError> {
    let own: Vec<_> = kernel.args.iter().filter(|arg| !arg.is_hidden()).collect();
    let in_order = (0..).step_by(ARGUMENT as usize);
    let fits = own
        .iter()
        .zip(in_order)
        .all(|(arg, at)| (arg.offset, arg.size) == (at, ARGUMENT));
    match fits && own.len() == arguments {
        true => Ok(()),
        false => Err(CodeObjectError::Arguments {
            kernel: kernel.name.clone(),
            found: own.iter().map(|arg| (arg.offset, arg.size)).collect(),
            expected: arguments,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::KernelArg;
    use super::*;

    const GFX90A: &[u8] = include_bytes!("fixtures/gfx90a.co");
    const SM_90: &[u8] = include_bytes!("fixtures/sm_90.cuda13.cubin");

    fn kernel(args: &[(u32, u32, &str)]) -> KernelResources {
        let mut kernel = read(GFX90A).unwrap().kernels.remove(0);
        let arg = |(offset, size, kind): &(u32, u32, &str)| KernelArg {
            name: None,
            offset: *offset,
            size: *size,
            kind: (*kind).to_owned(),
        };
        kernel.args = args.iter().map(arg).collect();
        kernel
    }

    #[test]
    fn kernels_with_other_arguments_are_refused() {
        let fits = kernel(&[
            (0, 8, "global_buffer"),
            (8, 8, "by_value"),
            (16, 4, "hidden_block_count_x"),
        ]);
        check_arguments(&fits, 2).unwrap();
        for (kernel, expected) in [
            (fits.clone(), 1),
            (fits, 3),
            (kernel(&[(0, 8, "global_buffer"), (8, 4, "by_value")]), 2),
            (kernel(&[(0, 8, "global_buffer"), (16, 8, "by_value")]), 2),
        ] {
            let error = check_arguments(&kernel, expected).unwrap_err();
            assert!(matches!(error, CodeObjectError::Arguments { .. }), "{error}");
        }
        // The fixture's third argument has 4 bytes.
        for file in [GFX90A, SM_90] {
            assert!(matches!(
                check(file, "scale", 3),
                Err(CodeObjectError::Arguments { .. })
            ));
            assert!(matches!(check(file, "none", 3), Err(CodeObjectError::NoKernel { .. })));
            check_extents(file).unwrap();
        }
    }

    #[test]
    fn parts_outside_the_file_are_refused() {
        // The first program header of ELF64 is at byte 64; its offset in the file at 8 in it, its size in the file at
        // 32.
        for field in [64 + 8, 64 + 32] {
            let mut forged = GFX90A.to_vec();
            forged[field + 4] = 1;
            let error = check_extents(&forged).unwrap_err();
            assert!(error.to_string().contains("segment 0"), "{error}");
        }
    }
}
