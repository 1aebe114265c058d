//! NumPy's array format: a header that says type, order and shape, and then the elements.
//!
//! ```text
//! "\x93NUMPY", major, minor     8 bytes
//! length of the text            u16 in version 1, u32 later
//! {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }     padded with spaces, a line end last
//! ```
//!
//! A header is read without the elements, so that they need be read only where they are what is wanted. Source:
//! `numpy.lib.format`.

use std::io::{self, Read, Write};

use frontend::weights::{ElementType, TensorView};
use ir::memory::reserve;
use ir::{DType, HostTensor};

/// The most bytes of a header's text; NumPy's own limit is 10,000.
const MOST_TEXT: u64 = 1 << 16;
const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Elements begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// What a header says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// As the file has it.
    element: ElementType,
    /// As it is computed with: `u16` as `i32`, `u32` and `u64` as `i64`.
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// The first axis varies fastest.
    fortran: bool,
    /// Bytes of the elements.
    pub data: u64,
    /// Bytes of the header itself.
    pub length: u64,
}

/// The NumPy type codes that have an element type here, of its own or as a wider one.
fn element_type(code: &str) -> Option<ElementType> {
    Some(match code {
        "<f4" => ElementType::F32,
        "<f2" => ElementType::F16,
        "<f8" => ElementType::F64,
        "<i8" => ElementType::I64,
        "<i4" => ElementType::I32,
        "<i2" => ElementType::I16,
        "|i1" | "<i1" => ElementType::I8,
        "<u8" => ElementType::U64,
        "<u4" => ElementType::U32,
        "<u2" => ElementType::U16,
        "|u1" | "<u1" => ElementType::U8,
        "|b1" | "<b1" => ElementType::Bool,
        _ => return None,
    })
}

/// The type code that elements are written as, and their type then: what NumPy lacks is widened.
fn type_code(dtype: DType) -> (&'static str, DType) {
    match dtype {
        DType::F32 => ("<f4", dtype),
        DType::F16 => ("<f2", dtype),
        DType::F64 => ("<f8", dtype),
        DType::I64 => ("<i8", dtype),
        DType::I32 => ("<i4", dtype),
        DType::I16 => ("<i2", dtype),
        DType::I8 => ("|i1", dtype),
        DType::U8 => ("|u1", dtype),
        DType::Bool => ("|b1", dtype),
        DType::I4 | DType::U4 => ("|i1", DType::I8),
        DType::BF16 | DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ => ("<f4", DType::F32),
    }
}

impl Header {
    /// Reads the header of an array, whose text may be anything.
    ///
    /// # Errors
    /// What is wrong with it, for a message that names the array.
    pub fn read(mut reader: impl Read) -> Result<Header, String> {
        let error = |e: io::Error| e.to_string();
        // Magic, version, and the length of the text in two bytes or four.
        let mut start = vec![0; 10];
        let whole = reader.read_exact(&mut start).map_err(|e| e.kind());
        if !start.starts_with(MAGIC) {
            return Err("it does not begin with NumPy's magic bytes".to_owned());
        }
        whole.map_err(|kind| kind.to_string())?;
        if !(1..=3).contains(&start[6]) {
            return Err(format!("it is of version {} of the format; 1 to 3 are known", start[6]));
        }
        if start[6] > 1 {
            start.resize(12, 0);
            reader.read_exact(&mut start[10..]).map_err(error)?;
        }
        let length = start[8..].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        if length > MOST_TEXT {
            return Err(format!(
                "its header has {length} bytes, but {MOST_TEXT} at most are read"
            ));
        }
        let mut text = vec![0; length as usize];
        reader.read_exact(&mut text).map_err(error)?;
        let said = Text { text: &text, at: 0 }.dictionary()?;
        let known = element_type(&said.code).and_then(|element| Some((element, element.dtype()?)));
        let (element, dtype) = known.ok_or_else(|| {
            let code = &said.code;
            format!(
                "element type {code:?} is not supported; known: float16/32/64, int8/16/32/64, uint8/16/32/64 and bool, \
                 little-endian"
            )
        })?;
        let data = element.bytes_for(&said.shape).map(|bytes| bytes as u64);
        let data = data.filter(|bytes| isize::try_from(*bytes).is_ok());
        let data = data.ok_or_else(|| format!("an array of shape {:?} is more than memory can hold", said.shape))?;
        Ok(Header {
            element,
            dtype,
            shape: said.shape,
            fortran: said.fortran,
            data,
            length: start.len() as u64 + length,
        })
    }

    /// Reads the elements that follow the header, and nothing behind them.
    ///
    /// # Errors
    /// Fewer elements than the header says; more than memory holds.
    pub fn elements(self, reader: impl Read) -> Result<HostTensor, String> {
        let what = || format!("an array of shape {:?}", self.shape);
        let mut bytes = reserve(self.data, what).map_err(|e| e.to_string())?;
        let read = reader.take(self.data).read_to_end(&mut bytes);
        read.map_err(|e| e.to_string())?;
        if bytes.len() as u64 != self.data {
            return Err(format!(
                "its header says {} bytes, but it ends after {}",
                self.data,
                bytes.len()
            ));
        }
        if self.dtype == DType::Bool {
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        if self.fortran && self.shape.len() > 1 {
            let turned = reserve(self.data, what).map_err(|e| e.to_string())?;
            let size = self.element.bytes_for(&[1]).unwrap_or(1);
            bytes = to_row_major(&bytes, size, &self.shape, turned);
        }
        let view = TensorView {
            name: String::new(),
            element: self.element,
            dims: self.shape,
            bytes: bytes.into(),
        };
        view.to_host().map_err(|e| e.to_string())
    }
}

/// What the text of a header says.
struct Said {
    code: String,
    fortran: bool,
    shape: Vec<usize>,
}

/// A header's text, which is a dictionary of Python's with three entries.
struct Text<'a> {
    text: &'a [u8],
    at: usize,
}

impl Text<'_> {
    fn dictionary(mut self) -> Result<Said, String> {
        let (mut code, mut fortran, mut shape) = (None, None, None);
        self.need(b'{')?;
        while !self.eat(b'}') {
            let key = self.string()?;
            self.need(b':')?;
            let twice = match key.as_str() {
                "descr" if matches!(self.next(), Some(b'[' | b'(')) => {
                    return Err("structured arrays are not supported".to_owned());
                }
                "descr" => code.replace(self.string()?).is_some(),
                "fortran_order" => fortran.replace(self.truth()?).is_some(),
                "shape" => shape.replace(self.sizes()?).is_some(),
                _ => return Err(format!("its header has the entry {key:?}, which is none of the format")),
            };
            if twice {
                return Err(format!("its header has the entry {key:?} twice"));
            }
            if !self.eat(b',') {
                self.need(b'}')?;
                break;
            }
        }
        if self.next().is_some() {
            return Err(self.expected("nothing behind the dictionary"));
        }
        let missing = |key: &str| format!("its header has no entry {key:?}");
        Ok(Said {
            code: code.ok_or_else(|| missing("descr"))?,
            fortran: fortran.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }

    /// The next byte that is no space, where the cursor stands then.
    fn next(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is = self.next() == Some(byte);
        self.at += usize::from(is);
        is
    }

    fn need(&mut self, byte: u8) -> Result<(), String> {
        match self.eat(byte) {
            true => Ok(()),
            false => Err(self.expected(&format!("{:?}", char::from(byte)))),
        }
    }

    fn expected(&self, what: &str) -> String {
        let found = self.text.get(self.at).map(|byte| char::from(*byte));
        format!("its header is damaged: byte {} is {found:?}, expected {what}", self.at)
    }

    fn string(&mut self) -> Result<String, String> {
        let quote = self.next().filter(|byte| matches!(byte, b'\'' | b'"'));
        let quote = quote.ok_or_else(|| self.expected("a string"))?;
        let rest = &self.text[self.at + 1..];
        let length = rest.iter().position(|byte| *byte == quote);
        let length = length.ok_or_else(|| self.expected("a string that ends"))?;
        self.at += length + 2;
        Ok(String::from_utf8_lossy(&rest[..length]).into_owned())
    }

    fn truth(&mut self) -> Result<bool, String> {
        self.next();
        for (word, value) in [("True", true), ("False", false)] {
            if self.text[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.expected("True or False"))
    }

    fn sizes(&mut self) -> Result<Vec<usize>, String> {
        let mut sizes = Vec::new();
        self.need(b'(')?;
        while !self.eat(b')') {
            self.next();
            let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit());
            let digits = &self.text[self.at..][..digits.count()];
            let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            sizes.push(number.ok_or_else(|| self.expected("a size"))?);
            self.at += digits.len();
            // As Python 2 wrote long numbers.
            self.at += usize::from(self.text.get(self.at) == Some(&b'L'));
            if !self.eat(b',') {
                self.need(b')')?;
                break;
            }
        }
        Ok(sizes)
    }
}

/// Reorders elements of some bytes each that are stored first axis fastest, into `out`, which is empty.
fn to_row_major(bytes: &[u8], width: usize, shape: &[usize], mut out: Vec<u8>) -> Vec<u8> {
    let mut strides = vec![1; shape.len()];
    for i in 1..shape.len() {
        strides[i] = strides[i - 1] * shape[i - 1];
    }
    let mut index = vec![0usize; shape.len()];
    for _ in 0..bytes.len() / width {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        out.extend_from_slice(&bytes[at * width..][..width]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}

/// Writes an array. Types that NumPy lacks (bf16, fp8, 4-bit) are widened to `f32` or `i8`.
///
/// # Errors
/// What the stream reports.
pub fn write(out: &mut dyn Write, tensor: &HostTensor) -> io::Result<()> {
    let (code, dtype) = type_code(tensor.dtype);
    let sizes: Vec<String> = tensor.shape.iter().map(|size| format!("{size},")).collect();
    // A tuple of one has its comma, others have none at the end.
    let mut shape = sizes.join(" ");
    if tensor.shape.len() > 1 {
        shape.pop();
    }
    let mut text = format!("{{'descr': '{code}', 'fortran_order': False, 'shape': ({shape}), }}");
    let prefix = |version: u8| MAGIC.len() + 2 + if version == 1 { 2 } else { 4 };
    let version = if text.len() + ALIGNMENT < usize::from(u16::MAX) {
        1
    } else {
        2
    };
    let whole = (prefix(version) + text.len() + 1).next_multiple_of(ALIGNMENT);
    text.extend(std::iter::repeat_n(' ', whole - prefix(version) - text.len() - 1));
    text.push('\n');
    out.write_all(MAGIC)?;
    out.write_all(&[version, 0])?;
    out.write_all(&(text.len() as u32).to_le_bytes()[..prefix(version) - MAGIC.len() - 2])?;
    out.write_all(text.as_bytes())?;
    match dtype {
        same if same == tensor.dtype => out.write_all(&tensor.bytes),
        DType::I8 => out.write_all(&ir::convert::encode_i64(dtype, &tensor.to_i64())),
        widened => out.write_all(&ir::convert::encode_f64(widened, &tensor.to_f64())),
    }
}

/// Bytes of an array's elements as they are written.
pub fn written_bytes(tensor: &HostTensor) -> u64 {
    let (_, dtype) = type_code(tensor.dtype);
    dtype.bytes_for(tensor.elements()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(text: &str) -> Result<Header, String> {
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((text.len() as u16).to_le_bytes());
        file.extend(text.as_bytes());
        Header::read(file.as_slice())
    }

    #[test]
    fn headers_are_read_as_numpy_writes_them() {
        for (text, shape) in [
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (), }   \n", vec![]),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", vec![3]),
            (
                "{\"shape\":(3, 4),\"descr\":\"<f4\",\"fortran_order\":False}",
                vec![3, 4],
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L)}",
                vec![3, 4],
            ),
        ] {
            let header = header(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!((header.dtype, &header.shape), (DType::F32, &shape), "{text}");
            assert_eq!(header.data, 4 * shape.iter().product::<usize>() as u64);
        }
    }

    #[test]
    fn headers_that_are_none_say_what_is_wrong() {
        for (text, what) in [
            ("", "expected '{'"),
            ("{'descr': '<f4', 'fortran_order': False}", "no entry \"shape\""),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
                "expected a size",
            ),
            (
                "{'descr': '<f4', 'fortran_order': 1, 'shape': ()}",
                "expected True or False",
            ),
            ("{'descr': '<f4', 'descr': '<f4'}", "twice"),
            (
                "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}",
                "structured arrays",
            ),
            (
                "{'descr': '>f4', 'fortran_order': False, 'shape': ()}",
                "\">f4\" is not supported",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': ()} 1",
                "nothing behind",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
                "more than memory",
            ),
            ("{'descr': '<f4", "a string that ends"),
            ("{{{{{{{{{{{{{{{{", "expected a string"),
        ] {
            let error = header(text).expect_err(text);
            assert!(error.contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn fortran_order_is_turned() {
        // [[1, 2, 3], [4, 5, 6]] stored by columns.
        assert_eq!(
            to_row_major(&[1, 4, 2, 5, 3, 6], 1, &[2, 3], Vec::new()),
            [1, 2, 3, 4, 5, 6]
        );
        let pairs = to_row_major(&[1, 1, 2, 2, 3, 3, 4, 4], 2, &[2, 2], Vec::new());
        assert_eq!(pairs, [1, 1, 3, 3, 2, 2, 4, 4]);
    }

    #[test]
    fn elements_begin_at_a_multiple_of_64() {
        for shape in [vec![], vec![2], vec![1, 2], vec![1; 8]] {
            let tensor = HostTensor::from_f32(shape.clone(), &vec![1.0; shape.iter().product()]).expect("fits");
            let mut bytes = Vec::new();
            write(&mut bytes, &tensor).expect("a vector takes all");
            let header = Header::read(bytes.as_slice()).expect("written here");
            assert_eq!((header.length % 64, &header.shape), (0, &shape));
            assert_eq!(bytes.len() as u64, header.length + header.data);
            let elements = header.clone().elements(&bytes[header.length as usize..]);
            assert_eq!(elements.expect("whole"), tensor);
        }
    }
}
