//! The numbers of blocks, against those of PyPI's `gguf` package (scripts/py/gguf_blocks.py made the file).

use graphc_gguf::{Problem, TensorType, dequantize};

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn blocks_stand_for_the_numbers_of_ggml() {
    let data = include_bytes!("data/blocks.bin");
    let (mut at, mut seen) = (0, Vec::new());
    while at < data.len() {
        let ty = TensorType::from_id(u32_at(data, at) as i32).unwrap();
        let blocks = u32_at(data, at + 4) as usize;
        at += 8;
        let (bytes, count) = (blocks * ty.block_bytes() as usize, blocks * ty.block() as usize);
        let mut numbers = vec![0.0f32; count];
        dequantize(ty, &data[at..at + bytes], &mut numbers).unwrap();
        at += bytes;
        let wanted = data[at..at + 4 * count]
            .chunks_exact(4)
            .map(|one| f32::from_le_bytes(one.try_into().unwrap()));
        for (index, (number, wanted)) in numbers.iter().zip(wanted).enumerate() {
            // The package rounds Q5_K's last step once less often; all others are equal to the bit.
            let bound = if ty == TensorType::Q5_K {
                wanted.abs() * 2e-7 + 1e-8
            } else {
                0.0
            };
            assert!(
                (number - wanted).abs() <= bound,
                "{ty} element {index}: {number} instead of {wanted}"
            );
        }
        at += 4 * count;
        seen.push(ty.name());
    }
    assert_eq!(seen.len(), 16, "{seen:?}");
}

#[test]
fn bits_of_one_and_two_stand_for_signs_and_thirds() {
    // d = 2, bits 1 0 1 0 ...: Q1_0 is +-d; Q2_0 is (q - 1) * d, with q = 2, 2, 0, 3 in 0b11_00_10_10.
    let half = half::f16::from_f32(2.0).to_le_bytes();
    let mut numbers = vec![0.0; 128];
    dequantize(
        TensorType::Q1_0,
        &[&half[..], &[0b0101_0101; 16]].concat(),
        &mut numbers,
    )
    .unwrap();
    assert_eq!(numbers[..4], [2.0, -2.0, 2.0, -2.0]);
    let mut numbers = vec![0.0; 64];
    dequantize(
        TensorType::Q2_0,
        &[&half[..], &[0b1100_1010; 16]].concat(),
        &mut numbers,
    )
    .unwrap();
    assert_eq!(numbers[..4], [2.0, 2.0, -2.0, 4.0]);
}

#[test]
fn lengths_and_types_that_do_not_fit_are_errors() {
    let wrong = dequantize(TensorType::Q4_0, &[0; 17], &mut [0.0; 32]).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "17 bytes of Q4_0 for 32 numbers; 18 bytes are needed"
    );
    assert!(matches!(
        dequantize(TensorType::Q4_0, &[0; 18], &mut [0.0; 31]),
        Err(Problem::Length { .. })
    ));
    let wrong = dequantize(TensorType::IQ2_XXS, &[0; 66], &mut [0.0; 256])
        .unwrap_err()
        .to_string();
    assert!(wrong.starts_with("IQ2_XXS has no numbers here"), "{wrong}");
    for &ty in TensorType::ALL {
        let mut numbers = vec![0.0; ty.block() as usize];
        match dequantize(ty, &vec![0xff; ty.block_bytes() as usize], &mut numbers) {
            Ok(()) => {}
            Err(Problem::NoNumbers { .. }) => {
                assert!(ty.name().starts_with("IQ") || ty.name().starts_with("Q8_"), "{ty}")
            }
            Err(other) => panic!("{ty}: {other}"),
        }
    }
}
