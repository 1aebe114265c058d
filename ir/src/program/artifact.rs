//! The file of a compiled model.
//!
//! ```text
//! magic "graphc\r\n"   8 bytes
//! version              u32
//! header length        u64
//! header checksum      32 bytes, BLAKE3
//! header               postcard: targets, graphc's version; names, plans, sources, and where each section is
//! sections             weights and code objects, each at a multiple of 64 bytes, zeros between
//! ```
//!
//! Numbers are little-endian. The same program gives the same bytes; equal sections are stored once. Loading maps the
//! file and leaves weights there: pages come in when they are first read. A file that is being loaded or used should
//! not be changed in place; [`Program::save`] never does, it replaces the file in one step. One that becomes shorter is
//! an error of whatever reads it ([`mapped`]).

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Program, Source, Variant};
use crate::data::{HostTensor, Storage};
use crate::entity::Table;
use crate::file;
use crate::graph::{ConstId, Constant};
use crate::mapped::{self, Mapped};
use crate::plan::verify::{InvalidPlan, PlanError, verify};
use crate::plan::{KernelId, Plan};
use crate::target::Target;
use crate::types::DType;

/// The first bytes of every artifact; the line end shows files that a text transfer has damaged.
pub const MAGIC: [u8; 8] = *b"graphc\r\n";
/// The version that this library writes and reads.
pub const VERSION: u32 = 34;
/// A section of fewer bytes is hashed by one core: others would come too late.
const HASHED_BY_ONE: usize = 128 << 10;
/// Sections begin at multiples of this.
pub const ALIGNMENT: usize = 64;

const PREFIX: usize = 8 + 4 + 8 + 32;

/// What wrote an artifact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Versions {
    /// The file format's version.
    pub format: u32,
    /// The version of graphc.
    pub graphc: String,
}

/// Stands before the header proper and apart, so that a reader can name a target that it does not know.
#[derive(Serialize, Deserialize)]
struct Preamble {
    targets: Vec<String>,
    /// The version of graphc that wrote the file.
    graphc: String,
}

/// Why an artifact could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    #[error("{path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("not an artifact of graphc: it does not begin with its magic bytes")]
    NotAnArtifact,
    #[error("the artifact has format version {got}, but this graphc reads {supported}; compile the model again")]
    Version { got: u32, supported: u32 },
    #[error("the artifact ends at byte {got}, inside {section} which reaches to byte {expected}")]
    Truncated { section: String, expected: u64, got: u64 },
    #[error("the checksum of {section} does not match: the file is damaged")]
    Checksum { section: String },
    #[error("the artifact was compiled for {target:?}, which this graphc does not know")]
    UnknownTarget { target: String },
    #[error("{section} cannot be decoded: {error}")]
    Decode { section: String, error: String },
    #[error("{section} is not where the format has it: {what}")]
    Layout { section: String, what: String },
    #[error("variant {variant}, for {target}: {error}")]
    Plan {
        variant: usize,
        target: String,
        error: InvalidPlan,
    },
}

/// How much of an artifact is checked while it is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Check {
    /// Everything, which reads every weight once.
    #[default]
    All,
    /// All but the contents of weights.
    Code,
}

#[derive(Serialize, Deserialize)]
struct Header {
    name: String,
    sections: Vec<Section>,
    constants: Vec<ConstantEntry>,
    variants: Vec<VariantEntry>,
}

#[derive(Serialize, Deserialize)]
struct Section {
    bytes: u64,
    checksum: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct ConstantEntry {
    name: Option<String>,
    dtype: DType,
    shape: Vec<u64>,
    section: u32,
}

#[derive(Serialize, Deserialize)]
struct VariantEntry {
    plan: Plan,
    sources: Table<KernelId, Source>,
    code: Vec<Option<u32>>,
}

/// The checksum of a section; of a large one, by all cores.
fn checksum(bytes: &[u8]) -> [u8; 32] {
    match bytes.len() < HASHED_BY_ONE {
        true => *blake3::hash(bytes).as_bytes(),
        false => *blake3::Hasher::new().update_rayon(bytes).finalize().as_bytes(),
    }
}

/// Sections in the order they are written, equal ones once.
#[derive(Default)]
struct Sections<'a> {
    found: IndexMap<([u8; 32], usize), &'a [u8]>,
}

impl<'a> Sections<'a> {
    fn add(&mut self, bytes: &'a [u8]) -> u32 {
        let key = (checksum(bytes), bytes.len());
        self.found.insert_full(key, bytes).0 as u32
    }
}

impl Program {
    /// Writes the program to a stream.
    ///
    /// # Errors
    /// What the stream reports.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut sections = Sections::default();
        let constants = self
            .constants
            .values()
            .map(|c| ConstantEntry {
                name: c.name.clone(),
                dtype: c.tensor.dtype,
                shape: c.tensor.shape.iter().map(|d| *d as u64).collect(),
                section: sections.add(&c.tensor.bytes),
            })
            .collect();
        let variants = self
            .variants
            .iter()
            .map(|v| VariantEntry {
                plan: v.plan.clone(),
                sources: v.sources.clone(),
                code: v.code.values().map(|c| c.as_ref().map(|c| sections.add(c))).collect(),
            })
            .collect();
        let header = Header {
            name: self.name.clone(),
            sections: sections
                .found
                .keys()
                .map(|(checksum, len)| Section {
                    bytes: *len as u64,
                    checksum: *checksum,
                })
                .collect(),
            constants,
            variants,
        };
        let preamble = Preamble {
            targets: self.variants.iter().map(|v| v.plan.target.to_string()).collect(),
            graphc: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let mut bytes = postcard::to_stdvec(&preamble).map_err(io::Error::other)?;
        bytes.extend(postcard::to_stdvec(&header).map_err(io::Error::other)?);
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&(bytes.len() as u64).to_le_bytes())?;
        out.write_all(blake3::hash(&bytes).as_bytes())?;
        out.write_all(&bytes)?;
        let mut at = PREFIX + bytes.len();
        for section in sections.found.values() {
            let start = at.next_multiple_of(ALIGNMENT);
            out.write_all(&[0; ALIGNMENT][..start - at])?;
            out.write_all(section)?;
            at = start + section.len();
        }
        Ok(())
    }

    /// Returns the bytes of the artifact.
    ///
    /// # Errors
    /// As [`Program::write`]; a program that fits memory has none.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        self.write(&mut out)?;
        Ok(out)
    }

    /// Saves the artifact, as [`file::write`] does: a reader sees the old file or the whole new one, never a part.
    ///
    /// # Errors
    /// [`ArtifactError::Io`] with the path.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), ArtifactError> {
        let path = path.as_ref();
        let io = |error| ArtifactError::Io {
            path: path.to_owned(),
            error,
        };
        file::write(path, |out| self.write(out)).map_err(io)
    }

    /// Loads an artifact and checks all of it; weights stay in the mapped file.
    ///
    /// # Errors
    /// [`ArtifactError`] that names what is wrong; nothing of a damaged file is used.
    pub fn load(path: impl AsRef<Path>) -> Result<Program, ArtifactError> {
        Program::load_with(path, Check::All)
    }

    /// Loads an artifact; see [`Check`].
    ///
    /// # Errors
    /// As [`Program::load`].
    pub fn load_with(path: impl AsRef<Path>, check: Check) -> Result<Program, ArtifactError> {
        let path = path.as_ref();
        let bytes = map(path)?;
        let program = Program::read(&bytes, check);
        // Damage of a file that became shorter meanwhile is no damage.
        match mapped::check([&bytes[..]]) {
            Ok(()) => program,
            Err(error) => Err(ArtifactError::Io {
                path: path.to_owned(),
                error: io::Error::other(error),
            }),
        }
    }

    /// Reads an artifact from bytes that the weights go on sharing.
    ///
    /// # Errors
    /// As [`Program::load`].
    pub fn read(bytes: &Storage, check: Check) -> Result<Program, ArtifactError> {
        let (preamble, rest, end) = preamble(bytes)?;
        if let Some(target) = preamble.targets.into_iter().find(|t| t.parse::<Target>().is_err()) {
            return Err(ArtifactError::UnknownTarget { target });
        }
        let (header, rest): (Header, &[u8]) = postcard::take_from_bytes(rest).map_err(undecodable)?;
        if !rest.is_empty() {
            return Err(ArtifactError::Layout {
                section: "the header".to_owned(),
                what: format!("{} bytes are left over", rest.len()),
            });
        }
        let sections = sections(bytes, end, &header, check)?;
        program(header, &sections)
    }
}

/// Reads which versions wrote an artifact.
///
/// # Errors
/// As [`Program::load`], for the file's head.
pub fn versions(path: impl AsRef<Path>) -> Result<Versions, ArtifactError> {
    let bytes = map(path.as_ref())?;
    Ok(Versions {
        format: VERSION,
        graphc: preamble(&bytes)?.0.graphc,
    })
}

/// Maps a file that is, or contains, an artifact.
///
/// # Errors
/// [`ArtifactError::Io`] with the path.
pub fn map(path: &Path) -> Result<Storage, ArtifactError> {
    let io = |error| ArtifactError::Io {
        path: path.to_owned(),
        error,
    };
    let file = file::open(path).map_err(io)?;
    Ok(Storage::new(Mapped::new(&file, path).map_err(io)?))
}

/// Checks the file's head and returns the preamble, what follows it in the header, and where the header ends.
fn preamble(bytes: &[u8]) -> Result<(Preamble, &[u8], usize), ArtifactError> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] || bytes.is_empty() {
        return Err(ArtifactError::NotAnArtifact);
    }
    let truncated = |section: &str, expected: u64| ArtifactError::Truncated {
        section: section.to_owned(),
        expected,
        got: bytes.len() as u64,
    };
    let prefix = bytes
        .get(..PREFIX)
        .ok_or_else(|| truncated("the prefix", PREFIX as u64))?;
    let version = u32::from_le_bytes(array(&prefix[8..12]));
    if version != VERSION {
        return Err(ArtifactError::Version {
            got: version,
            supported: VERSION,
        });
    }
    let header_len = u64::from_le_bytes(array(&prefix[12..20]));
    let end = header_len.saturating_add(PREFIX as u64);
    let header = usize::try_from(end)
        .ok()
        .and_then(|end| bytes.get(PREFIX..end))
        .ok_or_else(|| truncated("the header", end))?;
    if blake3::hash(header).as_bytes() != &prefix[20..52] {
        return Err(ArtifactError::Checksum {
            section: "the header".to_owned(),
        });
    }
    let (preamble, rest) = postcard::take_from_bytes(header).map_err(undecodable)?;
    Ok((preamble, rest, end as usize))
}

fn undecodable(error: postcard::Error) -> ArtifactError {
    ArtifactError::Decode {
        section: "the header".to_owned(),
        error: error.to_string(),
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

/// Names of sections for messages: by what uses them first.
fn labels(header: &Header) -> Vec<(String, bool)> {
    let mut labels: Vec<Option<(String, bool)>> = header.sections.iter().map(|_| None).collect();
    let mut put = |section: u32, label: String, weights: bool| {
        if let Some(slot) = labels.get_mut(section as usize)
            && slot.is_none()
        {
            *slot = Some((label, weights));
        }
    };
    for v in &header.variants {
        for (k, section) in v.code.iter().enumerate() {
            if let Some(section) = section {
                put(*section, format!("the code of k{k} for {}", v.plan.target), false);
            }
        }
    }
    for (c, entry) in header.constants.iter().enumerate() {
        let name = entry.name.as_ref().map_or(String::new(), |n| format!(" {n:?}"));
        put(entry.section, format!("constant c{c}{name}"), true);
    }
    let unused = |(i, label): (usize, Option<_>)| label.unwrap_or_else(|| (format!("section {i}"), false));
    labels.into_iter().enumerate().map(unused).collect()
}

fn sections(bytes: &Storage, mut at: usize, header: &Header, check: Check) -> Result<Vec<Storage>, ArtifactError> {
    let mut out = Vec::with_capacity(header.sections.len());
    let mut checked: Vec<(&Section, String, Storage)> = Vec::new();
    for (section, (label, weights)) in header.sections.iter().zip(labels(header)) {
        let start = at.next_multiple_of(ALIGNMENT);
        let end = (start as u64).saturating_add(section.bytes);
        let part = usize::try_from(section.bytes)
            .ok()
            .and_then(|len| bytes.slice(start, len));
        let Some(part) = part else {
            return Err(ArtifactError::Truncated {
                section: label,
                expected: end,
                got: bytes.len() as u64,
            });
        };
        if bytes[at..start].iter().any(|b| *b != 0) {
            return Err(ArtifactError::Layout {
                section: label,
                what: "the bytes before it are not zeros".to_owned(),
            });
        }
        at = start + part.len();
        if check == Check::All || !weights {
            checked.push((section, label, part.clone()));
        }
        out.push(part);
    }
    if at != bytes.len() {
        return Err(ArtifactError::Layout {
            section: "the end".to_owned(),
            what: format!("{} bytes follow the last section", bytes.len() - at),
        });
    }
    let is_damaged = |(section, _, part): &&(&Section, String, Storage)| checksum(part) != section.checksum;
    // The pages of a mapped file come while they are hashed, so that many sections at once take less time than one
    // after another.
    let damaged = match bytes.len() < HASHED_BY_ONE {
        true => checked.iter().find(is_damaged),
        false => checked.par_iter().find_first(is_damaged),
    };
    match damaged {
        Some((_, label, _)) => Err(ArtifactError::Checksum { section: label.clone() }),
        None => Ok(out),
    }
}

fn program(header: Header, sections: &[Storage]) -> Result<Program, ArtifactError> {
    let find = |what: String, section: u32| {
        sections.get(section as usize).ok_or(ArtifactError::Layout {
            section: what,
            what: format!("it names section {section} of {}", sections.len()),
        })
    };
    let mut constants: Table<ConstId, Constant> = Table::with_capacity(header.constants.len());
    for entry in header.constants {
        let label = constants.next_key().to_string();
        let shape: Vec<usize> = entry
            .shape
            .iter()
            .map(|d| usize::try_from(*d).unwrap_or(usize::MAX))
            .collect();
        let bytes = find(label.clone(), entry.section)?.clone();
        let tensor = HostTensor::new(entry.dtype, shape, bytes).map_err(|e| ArtifactError::Layout {
            section: label,
            what: e.to_string(),
        })?;
        constants.push(Constant {
            name: entry.name,
            tensor,
        });
    }
    let mut variants = Vec::with_capacity(header.variants.len());
    for (i, v) in header.variants.into_iter().enumerate() {
        let code = v
            .code
            .into_iter()
            .map(|c| c.map(|c| Ok(find(format!("variant {i}"), c)?.to_vec())).transpose())
            .collect::<Result<Table<KernelId, Option<Vec<u8>>>, ArtifactError>>()?;
        variants.push(Variant {
            plan: v.plan,
            sources: v.sources,
            code,
        });
    }
    for (i, variant) in variants.iter().enumerate() {
        check(i, variant, &constants)?;
    }
    Ok(Program {
        name: header.name,
        variants,
        constants,
    })
}

/// A checksum shows damage, not that what was written made sense: what runs a plan relies on it without asking again.
fn check(i: usize, variant: &Variant, constants: &Table<ConstId, Constant>) -> Result<(), ArtifactError> {
    let plan = &variant.plan;
    let layout = |what: String| ArtifactError::Layout {
        section: format!("variant {i}, for {},", plan.target),
        what,
    };
    let (kernels, sources, code) = (plan.kernels.len(), variant.sources.len(), variant.code.len());
    if sources != kernels || code != kernels {
        return Err(layout(format!(
            "it has {kernels} kernels, but {sources} sources and {code} code objects"
        )));
    }
    for (id, buffer) in plan.buffers.iter() {
        let Some(constant) = buffer.place.constant() else {
            continue;
        };
        let Some(found) = constants.get(constant) else {
            return Err(layout(format!(
                "buffer {id} names {constant} of {} constants",
                constants.len()
            )));
        };
        let (dtype, elements) = (found.tensor.dtype, found.tensor.elements());
        if dtype != buffer.ty.dtype || !buffer.ty.elements().is(elements as i64) {
            return Err(layout(format!(
                "buffer {id} is {}, but {constant} is {dtype} with {elements} elements",
                buffer.ty
            )));
        }
    }
    let Err(mut error) = verify(plan) else { return Ok(()) };
    // Hints are estimates: sizes that do not work out there may at those of a run, which places the arena again.
    if !plan.symbols.is_empty() {
        error.errors.retain(|e| !matches!(e, PlanError::Place(_)));
    }
    match error.errors.is_empty() {
        true => Ok(()),
        false => Err(ArtifactError::Plan {
            variant: i,
            target: plan.target.to_string(),
            error,
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dim::{Dim, Symbol, SymbolInfo};
    use crate::entity::Entity;
    use crate::kernel::eval::tests::row_kernel;
    use crate::plan::{Buffer, BufferId, Overlap, Place, Port};
    use crate::types::TensorType;

    /// The first artifact that a reader of the README sees.
    #[test]
    fn the_readme_shows_the_format_that_is_written() {
        let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
        assert!(readme.contains(&format!(" in format {VERSION}: ")), "format {VERSION}");
    }

    fn sample() -> Program {
        let mut constants = Table::new();
        for (name, v) in [("w", 1.5f32), ("u", 2.5), ("tied", 1.5)] {
            let tensor = HostTensor::from_f32(vec![33], &[v; 33]).unwrap();
            constants.push(Constant {
                name: Some(name.into()),
                tensor,
            });
        }
        let plan = |target: &str| Plan {
            target: target.parse().unwrap(),
            symbols: [(Symbol::new("n"), SymbolInfo::default())].into_iter().collect(),
            kernels: [row_kernel()].into_iter().collect(),
            buffers: [Buffer {
                name: "b".into(),
                ty: TensorType::new(DType::F32, vec![Dim::symbol("n") * 2 + 1]),
                place: Place::Input,
            }]
            .into_iter()
            .collect(),
            steps: Table::new(),
            lanes: Table::new(),
            inputs: vec![Port {
                name: "b".into(),
                buffer: BufferId::new(0),
                ty: TensorType::new(DType::F32, vec![Dim::symbol("n") * 2 + 1]),
            }],
            outputs: vec![],
            flops: Dim::symbol("n"),
            checks: Vec::new(),
            streaming: None,
            share: None,
            states: Vec::new(),
            requirements: Vec::new(),
            overlap: Overlap::default(),
        };
        let variant = |target, code| Variant {
            plan: plan(target),
            sources: [Source {
                text: "kernel".into(),
                entry: "k".into(),
                options: vec!["-O3".into()],
            }]
            .into_iter()
            .collect(),
            code: [code].into_iter().collect(),
        };
        Program {
            name: "sample".into(),
            variants: vec![variant("cpu", None), variant("gfx90a:xnack-", Some(vec![1, 2, 3]))],
            constants,
        }
    }

    fn read(bytes: Vec<u8>) -> Result<Program, ArtifactError> {
        Program::read(&Storage::new(bytes), Check::All)
    }

    #[test]
    fn saves_and_loads() {
        let program = sample();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.graphc");
        program.save(&path).unwrap();
        program.save(&path).unwrap();
        let back = Program::load(&path).unwrap();
        assert_eq!(back, program);
        assert_eq!(back.to_bytes().unwrap(), std::fs::read(&path).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        for c in back.constants.values() {
            assert_eq!(c.tensor.bytes.as_ptr() as usize % ALIGNMENT, 0);
        }
        let missing = Program::load(folder.path().join("no")).unwrap_err();
        assert!(matches!(missing, ArtifactError::Io { .. }));
    }

    #[test]
    fn damage_is_named() {
        let bytes = sample().to_bytes().unwrap();
        assert!(matches!(read(vec![]), Err(ArtifactError::NotAnArtifact)));
        assert!(matches!(
            read(b"ELF something".to_vec()),
            Err(ArtifactError::NotAnArtifact)
        ));
        let mut newer = bytes.clone();
        newer[8] = VERSION as u8 + 1;
        assert!(matches!(read(newer), Err(ArtifactError::Version { got, .. }) if got == VERSION + 1));
        let mut damaged = bytes.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(
            read(damaged.clone()).unwrap_err().to_string(),
            "the checksum of the code of k0 for gfx90a:xnack- does not match: the file is damaged"
        );
        let mut weights = bytes.clone();
        let at = weights.windows(4).position(|w| w == 1.5f32.to_le_bytes()).unwrap();
        weights[at] ^= 1;
        assert!(Program::read(&Storage::new(weights.clone()), Check::Code).is_ok());
        assert_eq!(
            read(weights).unwrap_err().to_string(),
            "the checksum of constant c0 \"w\" does not match: the file is damaged"
        );
        for cut in 0..bytes.len() {
            assert!(read(bytes[..cut].to_vec()).is_err(), "{cut}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(matches!(read(longer), Err(ArtifactError::Layout { .. })));
    }

    #[test]
    fn a_plan_that_does_not_verify_is_refused() {
        let refused = |change: fn(&mut Program)| {
            let mut program = sample();
            change(&mut program);
            read(program.to_bytes().unwrap())
                .expect_err("a damaged plan")
                .to_string()
        };
        let error = refused(|p| p.variants[1].plan.inputs[0].buffer = BufferId::new(7));
        assert!(
            error.contains("variant 1, for gfx90a:xnack-") && error.contains("names b7"),
            "{error}"
        );
        let error = refused(|p| p.variants[0].plan.kernels[KernelId::new(0)].params = Table::new());
        assert!(
            error.contains("variant 0, for cpu") && error.contains("kernel"),
            "{error}"
        );
        let error = refused(|p| p.variants[0].sources = Table::new());
        assert!(error.contains("1 kernels, but 0 sources"), "{error}");
        let error = refused(|p| p.variants[0].plan.buffers[BufferId::new(0)].place = Place::Constant(ConstId::new(9)));
        assert!(error.contains("names c9 of 3 constants"), "{error}");
        let error = refused(|p| p.variants[0].plan.buffers[BufferId::new(0)].place = Place::Constant(ConstId::new(0)));
        assert!(error.contains("c0 is f32 with 33 elements"), "{error}");
    }

    #[test]
    fn unknown_targets_are_named() {
        let mut bytes = sample().to_bytes().unwrap();
        let at = bytes.windows(6).position(|w| w == b"gfx90a").unwrap();
        bytes[at..at + 6].copy_from_slice(b"gfx99z");
        let header = u64::from_le_bytes(array(&bytes[12..20])) as usize;
        let checksum = *blake3::hash(&bytes[PREFIX..PREFIX + header]).as_bytes();
        bytes[20..52].copy_from_slice(&checksum);
        let error = read(bytes).unwrap_err();
        assert!(
            matches!(&error, ArtifactError::UnknownTarget { target } if target == "gfx99z:xnack-"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn any_change_is_an_error(at in any::<prop::sample::Index>(), with in 1u8..) {
            let mut bytes = sample().to_bytes().unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= with;
            prop_assert!(read(bytes).is_err());
        }

        #[test]
        fn any_bytes_are_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), magic in any::<bool>()) {
            if magic && bytes.len() > 12 {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
            }
            prop_assert!(read(bytes).is_err());
        }

        #[test]
        fn a_header_with_a_right_checksum_never_panics(at in any::<prop::sample::Index>(), with in 1u8..) {
            let mut bytes = sample().to_bytes().unwrap();
            let header = u64::from_le_bytes(array(&bytes[12..20])) as usize;
            bytes[PREFIX + at.index(header)] ^= with;
            let checksum = *blake3::hash(&bytes[PREFIX..PREFIX + header]).as_bytes();
            bytes[20..52].copy_from_slice(&checksum);
            let _ = read(bytes);
        }
    }
}
