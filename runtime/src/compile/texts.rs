//! A request as hiprtc and NVRTC, whose interfaces are one, take it: C strings and arrays of their addresses.

use std::ffi::{CString, c_char, c_int};

use super::CompileRequest;

/// The strings of a request. Addresses stay good as long as this lives.
pub(super) struct Texts {
    pub source: CString,
    pub name: CString,
    headers: List,
    header_names: List,
    options: List,
}

/// C strings and their addresses.
struct List {
    _strings: Vec<CString>,
    addresses: Vec<*const c_char>,
}

impl Texts {
    /// Copies a request's texts; `fixed` options go before its own.
    ///
    /// # Errors
    /// What cannot be a C string, and why; more headers or options than can be counted.
    pub fn new(request: &CompileRequest, fixed: &[String]) -> Result<Texts, String> {
        let (names, texts): (Vec<&str>, Vec<&str>) = request.headers.iter().map(|(n, t)| (&n[..], &t[..])).unzip();
        let options = fixed.iter().chain(&request.options).map(String::as_str);
        Ok(Texts {
            source: c_string(&request.source, "a source")?,
            name: c_string(&request.name, "a kernel name")?,
            headers: List::new(texts, "a header")?,
            header_names: List::new(names, "a header's name")?,
            options: List::new(options, "an option")?,
        })
    }

    /// How many headers there are, their texts and their names.
    pub fn headers(&self) -> (c_int, *const *const c_char, *const *const c_char) {
        let (texts, names) = (&self.headers, &self.header_names);
        (texts.count(), texts.addresses.as_ptr(), names.addresses.as_ptr())
    }

    /// How many options there are, and they.
    pub fn options(&self) -> (c_int, *const *const c_char) {
        (self.options.count(), self.options.addresses.as_ptr())
    }
}

impl List {
    fn new<'a>(texts: impl IntoIterator<Item = &'a str>, what: &str) -> Result<List, String> {
        let strings = texts
            .into_iter()
            .map(|text| c_string(text, what))
            .collect::<Result<Vec<_>, _>>()?;
        if c_int::try_from(strings.len()).is_err() {
            return Err(format!("{} times {what}", strings.len()));
        }
        let addresses = strings.iter().map(|s| s.as_ptr()).collect();
        Ok(List {
            _strings: strings,
            addresses,
        })
    }

    fn count(&self) -> c_int {
        // Checked when the list was made.
        self.addresses.len() as c_int
    }
}

fn c_string(text: &str, what: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| format!("{what} with a nul byte at {}", error.nul_position()))
}
