//! Any bytes: the ONNX reader returns a model or an error, and every view has as many bytes as its type says.
#![no_main]

use bytes::Bytes;
use graphc_frontend::onnx::{read_bytes, tensor_view};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(model) = read_bytes("fuzz.onnx", Bytes::copy_from_slice(data), None) else { return };
    let attributes = model.graph.node.iter().flat_map(|node| &node.attribute).filter_map(|a| a.t.as_ref());
    for tensor in model.graph.initializer.iter().chain(attributes) {
        if let Ok(view) = tensor_view(tensor) {
            assert_eq!(Some(view.bytes.len()), view.element.bytes_for(&view.dims));
            let _ = view.to_host();
        }
    }
});
