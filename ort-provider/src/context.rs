//! Regions that were compiled ahead of time: EPContext nodes whose blob is graphc's artifact.
//!
//! Whoever writes a model with such nodes is ONNX Runtime; here a node is made of a compiled region, and a region of
//! a node.

use std::ffi::{CString, c_char, c_void};
use std::path::{Component, Path, PathBuf};
use std::ptr;

use graphc::frontend::onnx::proto::NodeProto;
use graphc::ir::program::artifact::{self, Check};
use graphc::ir::{Program, Storage};
use ort_sys::{OrtNode, OrtOpAttr, OrtOpAttrType};

use crate::api::{Api, c_string};
use crate::error::{ProviderError, Result};
use crate::options::{ContextOptions, NAME};

const OP: &str = "EPContext";
const DOMAIN: &str = "com.microsoft";

/// Whether a node holds a region that some provider compiled.
pub fn is_context_node(node: &NodeProto) -> bool {
    node.op_type == OP && node.domain == DOMAIN
}

/// Whether a node holds a region that this provider compiled.
pub fn is_ours(node: &NodeProto) -> bool {
    is_context_node(node) && string(node, "source").as_deref() == Some(NAME.as_bytes())
}

fn string(node: &NodeProto, name: &str) -> Option<Vec<u8>> {
    let attribute = node.attribute.iter().find(|attribute| attribute.name == name)?;
    Some(attribute.s.to_vec())
}

fn integer(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute
        .iter()
        .find(|attribute| attribute.name == name)
        .map(|attribute| attribute.i)
}

/// Loads the program of a node; a file is looked for in the folder of the model.
///
/// # Errors
/// A node without a program, a path that leaves the folder, and a file or artifact that cannot be read.
pub fn load(node: &NodeProto, model: &Path) -> Result<Program> {
    let error = |reason: String| ProviderError::Context {
        node: node.name.clone(),
        reason,
    };
    let content = string(node, "ep_cache_context").ok_or_else(|| error("it has no ep_cache_context".to_owned()))?;
    let bytes = match integer(node, "embed_mode").unwrap_or(1) {
        0 => {
            let file = String::from_utf8(content).map_err(|_| error("the name of its file is not text".to_owned()))?;
            let file = PathBuf::from(file);
            let stays = file
                .components()
                .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
            if !stays {
                let why = format!(
                    "its file {:?} must be in the model's folder or below it",
                    file.display()
                );
                return Err(error(why));
            }
            let path = model.parent().unwrap_or(Path::new("")).join(file);
            artifact::map(&path).map_err(|e| error(e.to_string()))?
        }
        _ => Storage::new(decode(&content).ok_or_else(|| error("its ep_cache_context is damaged".to_owned()))?),
    };
    Program::read(&bytes, Check::All).map_err(|e| error(e.to_string()))
}

/// Makes the node of a compiled region.
///
/// # Errors
/// A file that cannot be written, and what ONNX Runtime reports.
pub fn node(
    api: Api,
    name: &str,
    (inputs, outputs): (&[String], &[String]),
    program: &Program,
    model: &Path,
    options: &ContextOptions,
) -> Result<*mut OrtNode> {
    let error = |reason: String| ProviderError::Context {
        node: name.to_owned(),
        reason,
    };
    let content = match options.embed {
        true => encode(&program.to_bytes().map_err(|e| error(e.to_string()))?),
        false => {
            let target = target(options, model).ok_or_else(|| {
                error(
                    "say where the model goes by ep.context_file_path, or embed by ep.context_embed_mode = 1"
                        .to_owned(),
                )
            })?;
            let stem = target.file_stem().unwrap_or_default().to_string_lossy();
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            let file = format!("{stem}_{}.graphc", name.chars().map(plain).collect::<String>());
            let path = target.parent().unwrap_or(Path::new("")).join(&file);
            program.save(&path).map_err(|e| error(e.to_string()))?;
            file
        }
    };
    let targets: Vec<String> = program.variants.iter().map(|v| v.plan.target.to_string()).collect();
    let mut attributes = Attributes { api, made: Vec::new() };
    attributes.integer("main_context", 1)?;
    attributes.integer("embed_mode", i64::from(options.embed))?;
    attributes.string("ep_cache_context", &content)?;
    attributes.string("source", NAME)?;
    attributes.string("ep_sdk_version", env!("CARGO_PKG_VERSION"))?;
    attributes.string("hardware_architecture", &targets.join(","))?;
    attributes.string("partition_name", name)?;
    let strings = |names: &[String]| -> Vec<CString> { names.iter().map(|name| c_string(name)).collect() };
    let (inputs, outputs) = (strings(inputs), strings(outputs));
    let pointers = |names: &[CString]| -> Vec<*const c_char> { names.iter().map(|name| name.as_ptr()).collect() };
    let (inputs, outputs) = (pointers(&inputs), pointers(&outputs));
    let mut node = ptr::null_mut();
    // SAFETY: all arrays have their lengths; strings are copied. Attributes become the node's where it is made.
    let status = unsafe {
        (api.editor.CreateNode)(
            c_string(OP).as_ptr(),
            c_string(DOMAIN).as_ptr(),
            c_string(name).as_ptr(),
            inputs.as_ptr(),
            inputs.len(),
            outputs.as_ptr(),
            outputs.len(),
            attributes.made.as_mut_ptr(),
            attributes.made.len(),
            &mut node,
        )
    };
    api.check("CreateNode", status)?;
    attributes.made.clear();
    Ok(node)
}

/// Where the model with the nodes goes: as asked, or beside the model as ONNX Runtime does.
fn target(options: &ContextOptions, model: &Path) -> Option<PathBuf> {
    if !options.path.is_empty() {
        return Some(PathBuf::from(&options.path));
    }
    let stem = model.file_stem()?.to_string_lossy().into_owned();
    Some(model.with_file_name(format!("{stem}_ctx.onnx")))
}

/// Attributes that are to become a node's; those that do not are freed.
struct Attributes {
    api: Api,
    made: Vec<*mut OrtOpAttr>,
}

impl Attributes {
    fn integer(&mut self, name: &str, value: i64) -> Result<()> {
        self.add(name, (&raw const value).cast(), 1, OrtOpAttrType::ORT_OP_ATTR_INT)
    }

    fn string(&mut self, name: &str, value: &str) -> Result<()> {
        let value = c_string(value);
        let length = i32::try_from(value.as_bytes().len()).map_err(|_| {
            ProviderError::Unexpected(format!("{name} has more than 2 GiB; leave ep.context_embed_mode at 0"))
        })?;
        self.add(name, value.as_ptr().cast(), length, OrtOpAttrType::ORT_OP_ATTR_STRING)
    }

    fn add(&mut self, name: &str, data: *const c_void, length: i32, kind: OrtOpAttrType) -> Result<()> {
        let (name, mut attribute) = (c_string(name), ptr::null_mut());
        // SAFETY: the data are of this kind and length, and are copied, as the name is.
        let status = unsafe { (self.api.ort.CreateOpAttr)(name.as_ptr(), data, length, kind, &mut attribute) };
        self.api.check("CreateOpAttr", status)?;
        self.made.push(attribute);
        Ok(())
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        for attribute in self.made.drain(..).filter(|attribute| !attribute.is_null()) {
            // SAFETY: it was made here, and no node took it.
            unsafe { (self.api.ort.ReleaseOpAttr)(attribute) };
        }
    }
}

/// The digits of base 64, as in RFC 4648.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as text: ONNX Runtime's attributes of text end at a zero.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for digit in 0..=group.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    text
}

/// Bytes that [`encode`] made text of; `None` for other text. Zeros at the end are left out.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|c| *c != 0).map_or(0, |last| last + 1);
    let mut values = [None; 256];
    for (value, digit) in (0u32..).zip(DIGITS) {
        values[usize::from(*digit)] = Some(value);
    }
    let mut bytes = Vec::with_capacity(end / 4 * 3 + 2);
    for group in text[..end].chunks(4) {
        let mut bits = 0u32;
        for digit in group {
            bits = bits << 6 | values[usize::from(*digit)]?;
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(bits.to_be_bytes().get(1..group.len())?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_through_text() {
        for length in 0..70usize {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 37 + length) as u8).collect();
            let text = encode(&bytes);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(&bytes[..]), "{text}");
            let ended = [text.as_bytes(), b"\0"].concat();
            assert_eq!(decode(&ended).as_deref(), Some(&bytes[..]));
        }
        assert_eq!(encode(b"graphc"), "Z3JhcGhj");
        assert!(decode(b"no base").is_none());
    }

    #[test]
    fn files_stay_in_the_folder_of_the_model() {
        use graphc::frontend::onnx::proto::AttributeProto;
        let node = |file: &str| NodeProto {
            attribute: vec![
                AttributeProto {
                    name: "embed_mode".to_owned(),
                    ..AttributeProto::default()
                },
                AttributeProto {
                    name: "ep_cache_context".to_owned(),
                    s: file.as_bytes().to_vec().into(),
                    ..AttributeProto::default()
                },
            ],
            ..NodeProto::default()
        };
        for file in ["../x.graphc", "/x.graphc", "a/../../x.graphc"] {
            let error = load(&node(file), Path::new("models/m.onnx"))
                .expect_err(file)
                .to_string();
            assert!(error.contains("folder"), "{error}");
        }
        let error = load(&node("missing.graphc"), Path::new("models/m.onnx")).expect_err("missing");
        assert!(error.to_string().contains("models/missing.graphc"), "{error}");
    }
}
