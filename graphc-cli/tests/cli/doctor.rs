//! `graphc doctor`, the variables that it shows, and the names of devices.

use serde_json::Value;

use crate::place::{Place, SMALL, refused, text};

fn doctor(p: &Place, variables: &[(&str, &str)]) -> Value {
    let mut command = p.command(&["doctor", "--format", "json"]);
    let output = command.envs(variables.iter().copied()).output().expect("starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn library<'a>(found: &'a Value, name: &str) -> &'a Value {
    let all = found["libraries"].as_array().expect("a list");
    all.iter()
        .find(|l| l["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {found:#}"))
}

#[test]
fn what_is_there_and_what_is_missing_are_said_with_the_way_to_get_it() {
    let p = Place::new();
    let lib = p.path("rocm/lib");
    std::fs::create_dir_all(&lib).expect("a folder");
    for name in ["libhiprtc.so.7", "libamd_comgr.so.3", "librocblas.so.5", "librccl.so.1"] {
        std::fs::write(lib.join(name), "not opened").expect("written");
    }
    let rocm = p.path("rocm");
    let nowhere = p.path("nowhere");
    let found = doctor(
        &p,
        &[
            ("ROCM_PATH", text(&rocm)),
            ("GRAPHC_NVRTC", text(&nowhere)),
            ("GRAPHC_CUDA", text(&nowhere)),
            ("GRAPHC_HIP", text(&nowhere)),
            ("HIP_VISIBLE_DEVICES", "1"),
        ],
    );
    // What ROCM_PATH names comes before every usual place.
    for (name, file) in [
        ("hiprtc", "libhiprtc.so.7"),
        ("comgr", "libamd_comgr.so.3"),
        ("rocBLAS", "librocblas.so.5"),
        ("RCCL", "librccl.so.1"),
    ] {
        assert_eq!(library(&found, name)["path"], text(&lib.join(file)), "{found:#}");
        assert!(library(&found, name)["version"].is_string(), "{found:#}");
    }
    for (name, get) in [
        ("NVRTC", "scripts/nvrtc.sh"),
        ("CUDA driver", "GRAPHC_CUDA"),
        ("HIP runtime", "apt install"),
    ] {
        let missing = library(&found, name);
        assert_eq!(missing["found"], false, "{missing:#}");
        assert!(missing["looked_in"].to_string().contains(text(&nowhere)), "{missing:#}");
        assert!(missing["get"].as_str().is_some_and(|g| g.contains(get)), "{missing:#}");
    }
    assert_eq!(found["settings"]["HIP_VISIBLE_DEVICES"], "1");
    assert_eq!(found["settings"]["ROCM_PATH"], text(&rocm));
    assert_eq!(found["devices"][0]["name"], "cpu");
    // The same for people.
    let mut command = p.command(&["doctor"]);
    let output = command
        .env("GRAPHC_NVRTC", &nowhere)
        .env("HIP_VISIBLE_DEVICES", "1")
        .output()
        .expect("starts");
    let said = String::from_utf8(output.stdout).expect("text");
    for part in [
        "HIP_VISIBLE_DEVICES=1",
        "NVRTC",
        "MISSING",
        "scripts/nvrtc.sh",
        text(&nowhere),
        "devices\n  cpu",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn rocm_path_is_where_the_compiler_is_looked_for() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    let lib = p.path("rocm/lib");
    std::fs::create_dir_all(&lib).expect("a folder");
    std::fs::write(lib.join("libhiprtc.so.7"), "no library").expect("written");
    let args = ["compile", text(&m), "--target", "gfx90a", "-o", "a.graphc"];
    let output = p
        .command(&args)
        .env("ROCM_PATH", p.path("rocm"))
        .output()
        .expect("starts");
    assert!(!output.status.success());
    refused(
        &args,
        &output,
        output.status.code().unwrap_or_default(),
        &["libhiprtc.so.7"],
    );
}

#[test]
fn hip_and_rocm_name_the_same_device() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    let nowhere = p.path("nowhere");
    let said = ["hip", "rocm", "hip:0", "rocm:0", "rocm:3"].map(|device| {
        let args = ["run", text(&m), "--random", "--device", device];
        let mut command = p.command(&args);
        let output = command
            .env("GRAPHC_HIP", &nowhere)
            .env("HIP_VISIBLE_DEVICES", "5")
            .output();
        refused(
            &args,
            &output.expect("starts"),
            2,
            &[text(&nowhere), "HIP_VISIBLE_DEVICES=5"],
        )
    });
    assert!(said.iter().all(|s| *s == said[0]), "{said:#?}");
}

#[test]
fn a_folder_for_temporary_files_that_is_not_there_is_named() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    let args = ["compile", text(&m), "--target", "gfx90a", "-o", "a.graphc"];
    let output = p
        .command(&args)
        .env("TMPDIR", "/graphc/no/such/folder")
        .output()
        .expect("starts");
    refused(&args, &output, 2, &["TMPDIR=/graphc/no/such/folder", "No such file"]);
}

/// A variable that is none of graphc's is said, with the one that may have been meant, and stops nothing.
#[test]
fn a_variable_that_is_no_setting_is_said() {
    let p = Place::new();
    let m = p.write("small.gir", SMALL);
    let args = ["run", text(&m), "--random"];
    let said = |args: &[&str]| {
        let output = p.command(args).env("GRAPHC_THRAEDS", "1").output().expect("starts");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let message = said(&args);
    assert!(
        message.contains("GRAPHC_THRAEDS") && message.contains("did you mean GRAPHC_THREADS?"),
        "{message}"
    );
    assert!(!said(&[&args[..], &["--quiet"]].concat()).contains("GRAPHC_THRAEDS"));
    let found = doctor(&p, &[("GRAPHC_THRAEDS", "1")]);
    assert!(
        found["problems"].to_string().contains("did you mean GRAPHC_THREADS?"),
        "{found:#}"
    );
    let known = p.command(&args).env("GRAPHC_EMU_SEED", "1").output().expect("starts");
    assert!(!String::from_utf8_lossy(&known.stderr).contains("no setting"));
}
