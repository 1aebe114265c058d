//! Any bytes: the safetensors reader returns weights or an error, and every view has as many bytes as its type says.
#![no_main]

use bytes::Bytes;
use graphc_frontend::weights::Weights;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(weights) = Weights::from_bytes("fuzz.safetensors", Bytes::copy_from_slice(data)) else { return };
    for view in weights.tensors() {
        assert_eq!(Some(view.bytes.len()), view.element.bytes_for(&view.dims));
        let _ = view.to_host();
    }
});
