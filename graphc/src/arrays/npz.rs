//! NumPy's archives: a zip file with an `.npy` file for each array.
//!
//! Reading looks at the headers alone until an array is asked for, so that nothing is unpacked that nobody wants, and
//! nothing past what a header says. Writing stores, as `numpy.savez` does, or deflates, as `numpy.savez_compressed`
//! does.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ir::HostTensor;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use super::npy::{self, Header};

/// The ending of a member's name, which is not part of the array's.
const ENDING: &str = ".npy";
/// The most bytes of a member's name, whose length the format keeps in 16 bits.
const MOST_NAME: usize = u16::MAX as usize;
/// Members from here on have their sizes in 64 bits.
const LARGE: u64 = u32::MAX as u64 - (1 << 20);

/// An archive that is open.
#[derive(Debug)]
pub struct Archive(Mutex<ZipArchive<BufReader<File>>>);

/// An array of an archive: its name, its header, and its member's number.
pub type Member = (String, Header, usize);

impl Archive {
    /// Opens an archive and reads the headers of its arrays, in the order of their names. Members that are no arrays
    /// are passed over.
    ///
    /// # Errors
    /// What is wrong, for a message that names the file.
    pub fn open(path: &Path) -> Result<(Archive, Vec<Member>), String> {
        let file = ir::file::open(path).map_err(|e| e.to_string())?;
        let archive = ZipArchive::new(BufReader::new(file));
        let mut archive = archive.map_err(|e| format!("not an npz archive: {e}"))?;
        let mut members = Vec::new();
        for index in 0..archive.len() {
            let name = archive.name_for_index(index).unwrap_or_default();
            let Some(name) = name.strip_suffix(ENDING).map(str::to_owned) else {
                continue;
            };
            let header = header(&mut archive, index).map_err(|e| format!("array {name:?}: {e}"))?;
            members.push((name, header, index));
        }
        members.sort_by(|a, b| a.0.cmp(&b.0));
        match members.windows(2).find(|two| two[0].0 == two[1].0) {
            Some(two) => Err(format!("it holds array {:?} twice", two[0].0)),
            None => Ok((Archive(Mutex::new(archive)), members)),
        }
    }

    /// Reads the elements of an array.
    ///
    /// # Errors
    /// As [`Header::elements`]; a member whose checksum does not match.
    pub fn read(&self, index: usize) -> Result<HostTensor, String> {
        let mut archive = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut member = archive.by_index(index).map_err(|e| e.to_string())?;
        let header = Header::read(&mut member)?;
        let tensor = header.elements(&mut member)?;
        // The checksum is compared at the end, which is here: the sizes were compared when the archive was opened.
        match io::Read::read(&mut member, &mut [0]) {
            Ok(0) => Ok(tensor),
            Ok(_) => Err("more follows than the archive says".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn header(archive: &mut ZipArchive<BufReader<File>>, index: usize) -> Result<Header, String> {
    let mut member = archive.by_index(index).map_err(|e| e.to_string())?;
    let size = member.size();
    let header = Header::read(&mut member)?;
    match header.length.checked_add(header.data) == Some(size) {
        true => Ok(header),
        false => Err(format!(
            "its header says {} bytes of elements, but the archive has {} there",
            header.data,
            size.saturating_sub(header.length)
        )),
    }
}

/// Checks that the names of arrays can be those of members.
///
/// # Errors
/// The name that cannot, with its length.
pub fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    let long = names.into_iter().find(|name| name.len() + ENDING.len() > MOST_NAME);
    long.map_or(Ok(()), |name| {
        let start: String = name.chars().take(40).collect();
        Err(format!(
            "the name of array \"{start}…\" has {} bytes, but an .npz holds names of {} at most; write .safetensors, or give the \
             output a shorter name",
            name.len(),
            MOST_NAME - ENDING.len()
        ))
    })
}

/// Writes an archive to a stream.
///
/// # Errors
/// What the stream reports; a name that no member can have.
pub fn write<'a>(
    out: &mut dyn Write,
    arrays: impl IntoIterator<Item = (&'a String, &'a HostTensor)>,
    compress: bool,
) -> io::Result<()> {
    let method = match compress {
        true => CompressionMethod::Deflated,
        false => CompressionMethod::Stored,
    };
    let mut archive = ZipWriter::new_stream(out);
    for (name, tensor) in arrays {
        check_names([name.as_str()]).map_err(io::Error::other)?;
        let options = SimpleFileOptions::default()
            .compression_method(method)
            // The same arrays are the same bytes, whenever they are written.
            .last_modified_time(DateTime::default())
            .large_file(npy::written_bytes(tensor) >= LARGE);
        archive.start_file(format!("{name}{ENDING}"), options)?;
        npy::write(&mut archive, tensor)?;
    }
    archive.finish()?;
    Ok(())
}
