//! A writer of indented C++.

/// Text under construction; blocks indent by four spaces.
#[derive(Clone, Default)]
pub struct Writer {
    text: String,
    depth: usize,
}

impl Writer {
    /// Writes one line at the current depth; an empty one without trailing blanks.
    pub fn line(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        if !line.is_empty() {
            self.text.extend(std::iter::repeat_n("    ", self.depth));
            self.text.push_str(line);
        }
        self.text.push('\n');
    }

    /// Writes `head {` and goes one deeper.
    pub fn open(&mut self, head: impl AsRef<str>) {
        self.line(format!("{} {{", head.as_ref()));
        self.depth += 1;
    }

    /// Closes a block: `}` and what follows it.
    pub fn close(&mut self, after: &str) {
        self.depth = self.depth.saturating_sub(1);
        self.line(format!("}}{after}"));
    }

    /// Closes a block and opens its sibling: `} else {`.
    pub fn close_open(&mut self, between: &str) {
        self.depth = self.depth.saturating_sub(1);
        self.line(format!("}} {between} {{"));
        self.depth += 1;
    }

    /// Returns the text.
    pub fn finish(self) -> String {
        self.text
    }
}
