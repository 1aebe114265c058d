use super::*;

fn tensor(data_type: DataType, dims: &[i64]) -> TensorProto {
    TensorProto {
        name: "t".into(),
        data_type: data_type as i32,
        dims: dims.into(),
        ..TensorProto::default()
    }
}

fn ints(data_type: DataType, dims: &[i64], int32_data: &[i32]) -> TensorProto {
    TensorProto {
        int32_data: int32_data.into(),
        ..tensor(data_type, dims)
    }
}

#[test]
fn raw_data_is_shared() {
    let raw = Bytes::from(vec![1u8; 8]);
    let view = tensor_view(&TensorProto {
        raw_data: raw.clone(),
        ..tensor(DataType::Float, &[2])
    })
    .unwrap();
    assert_eq!(view.bytes.as_ptr(), raw.as_ptr());
}

#[test]
fn every_typed_field_is_encoded() {
    let bytes = |t: TensorProto| tensor_view(&t).unwrap().bytes.to_vec();
    let float = TensorProto {
        float_data: vec![1.5, -2.0],
        ..tensor(DataType::Float, &[2])
    };
    assert_eq!(bytes(float), [1.5f32.to_le_bytes(), (-2f32).to_le_bytes()].concat());
    let complex = TensorProto {
        float_data: vec![1.0, 2.0],
        ..tensor(DataType::Complex64, &[1])
    };
    assert_eq!(bytes(complex).len(), 8);
    let double = TensorProto {
        double_data: vec![1.5],
        ..tensor(DataType::Double, &[1])
    };
    assert_eq!(bytes(double), 1.5f64.to_le_bytes());
    let long = TensorProto {
        int64_data: vec![-1],
        ..tensor(DataType::Int64, &[])
    };
    assert_eq!(bytes(long), [0xff; 8]);
    let unsigned = TensorProto {
        uint64_data: vec![u64::MAX],
        ..tensor(DataType::Uint64, &[1])
    };
    assert_eq!(bytes(unsigned), [0xff; 8]);
    let unsigned = TensorProto {
        uint64_data: vec![0xffff_ffff],
        ..tensor(DataType::Uint32, &[1])
    };
    assert_eq!(bytes(unsigned), [0xff; 4]);
    assert_eq!(bytes(ints(DataType::Int32, &[1], &[-2])), (-2i32).to_le_bytes());
    assert_eq!(bytes(ints(DataType::Int16, &[1], &[-2])), (-2i16).to_le_bytes());
    assert_eq!(bytes(ints(DataType::Uint16, &[1], &[65535])), [0xff, 0xff]);
    assert_eq!(bytes(ints(DataType::Int8, &[2], &[-128, 127])), [0x80, 0x7f]);
    assert_eq!(bytes(ints(DataType::Uint8, &[1], &[200])), [200]);
    assert_eq!(bytes(ints(DataType::Bool, &[3], &[0, 1, 7])), [0, 1, 1]);
    assert_eq!(bytes(ints(DataType::Float16, &[1], &[0x3c00])), [0x00, 0x3c]);
    assert_eq!(bytes(ints(DataType::Bfloat16, &[1], &[0x3f80])), [0x80, 0x3f]);
    for fp8 in [
        DataType::Float8e4m3fn,
        DataType::Float8e4m3fnuz,
        DataType::Float8e5m2,
        DataType::Float8e5m2fnuz,
    ] {
        assert_eq!(bytes(ints(fp8, &[2], &[0x38, 0xb8])), [0x38, 0xb8]);
    }
    // Three 4-bit elements are two bytes, and so two entries.
    assert_eq!(bytes(ints(DataType::Int4, &[3], &[0x21, 0x0f])), [0x21, 0x0f]);
    assert_eq!(bytes(ints(DataType::Uint4, &[2], &[0xf1])), [0xf1]);
}

#[test]
fn empty_tensors_need_no_data() {
    assert!(tensor_view(&tensor(DataType::Float, &[0, 3])).unwrap().bytes.is_empty());
}

#[test]
fn mismatches_are_typed() {
    let error = |t: TensorProto| tensor_view(&t).unwrap_err();
    let raw = TensorProto {
        raw_data: Bytes::from_static(&[0; 7]),
        ..tensor(DataType::Float, &[2])
    };
    assert!(matches!(
        error(raw),
        TensorError::Size {
            expected: 8,
            found: 7,
            ..
        }
    ));
    let raw = TensorProto {
        raw_data: Bytes::from_static(&[0; 7]),
        ..tensor(DataType::Float, &[0])
    };
    assert!(matches!(
        error(raw),
        TensorError::Size {
            expected: 0,
            found: 7,
            ..
        }
    ));
    assert!(matches!(
        error(tensor(DataType::Float, &[2])),
        TensorError::Count {
            field: "float_data",
            expected: 2,
            found: 0,
            ..
        }
    ));
    assert!(matches!(
        error(tensor(DataType::Float, &[-1])),
        TensorError::Dim {
            index: 0,
            value: -1,
            ..
        }
    ));
    assert!(matches!(
        error(tensor(DataType::Float, &[i64::MAX, 9])),
        TensorError::TooLarge { .. }
    ));
    assert!(matches!(
        error(tensor(DataType::String, &[1])),
        TensorError::Strings { .. }
    ));
    assert!(matches!(
        error(tensor(DataType::Undefined, &[1])),
        TensorError::ElementType { code: 0, .. }
    ));
    let unknown = TensorProto {
        data_type: 99,
        ..TensorProto::default()
    };
    assert!(matches!(error(unknown), TensorError::ElementType { code: 99, .. }));
    assert!(matches!(
        error(ints(DataType::Int8, &[1], &[128])),
        TensorError::Range { value: 128, .. }
    ));
    assert!(matches!(
        error(ints(DataType::Uint8, &[1], &[-1])),
        TensorError::Range { value: -1, .. }
    ));
    let external = TensorProto {
        data_location: DataLocation::External as i32,
        ..tensor(DataType::Float, &[1])
    };
    assert!(matches!(error(external), TensorError::External { .. }));
}
