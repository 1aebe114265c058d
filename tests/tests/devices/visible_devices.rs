//! Which GPUs HIP shows is said by its own variable; graphc goes by it and says so.

use graphc_tests::emulated_hip::EmulatedHip;
use graphc_tests::repository;

#[test]
fn hip_visible_devices_is_honoured_and_named() {
    let variables = [("GRAPHC_EMU_ARCH", "gfx90a,gfx1100"), ("HIP_VISIBLE_DEVICES", "1")];
    let Some(hip) = EmulatedHip::new(&variables) else {
        return;
    };
    for words in [&["targets", "--devices"][..], &["doctor"]] {
        let said = String::from_utf8(hip.graphc(words).stdout).expect("text");
        assert!(
            said.contains("hip:0  gfx1100") && !said.contains("hip:1"),
            "{words:?}: {said}"
        );
    }
    let model = repository("examples/digits/digits.onnx");
    let model = model.to_str().expect("UTF-8");
    for device in ["hip:1", "rocm:1"] {
        let output = hip.graphc(&["run", model, "--random", "--device", device]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("sees hip:0") && said.contains("HIP_VISIBLE_DEVICES=1"),
            "{said}"
        );
    }
    let output = hip.graphc(&["run", model, "--random", "--size", "batch=1", "--device", "rocm"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
