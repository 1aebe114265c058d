//! A writer of indented C++.

/// Text under construction; blocks indent by four spaces.
#[derive(Clone, Default)]
pub struct Writer {
    text: String,
    /// The blocks that are open, each with the locals declared in it so far.
    blocks: Vec<Vec<String>>,
    /// The locals declared outside all blocks.
    outside: Vec<String>,
}

impl Writer {
    /// Writes one line at the current depth; an empty one without trailing blanks.
    pub fn line(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        if !line.is_empty() {
            self.text.extend(std::iter::repeat_n("    ", self.blocks.len()));
            self.text.push_str(line);
        }
        self.text.push('\n');
    }

    /// Writes `head {` and goes one deeper.
    pub fn open(&mut self, head: impl AsRef<str>) {
        self.line(format!("{} {{", head.as_ref()));
        self.blocks.push(Vec::new());
    }

    /// Closes a block: `}` and what follows it.
    pub fn close(&mut self, after: &str) {
        self.blocks.pop();
        self.line(format!("}}{after}"));
    }

    /// Closes a block and opens its sibling: `} else {`.
    pub fn close_open(&mut self, between: &str) {
        self.blocks.pop();
        self.line(format!("}} {between} {{"));
        self.blocks.push(Vec::new());
    }

    /// Notes that a local of this name is declared in the innermost open block; `false` where one is already: C++ has
    /// one of a name a block, also where what it stood for is out of view.
    pub fn declares(&mut self, name: &str) -> bool {
        let block = self.blocks.last_mut().unwrap_or(&mut self.outside);
        let new = !block.iter().any(|other| other == name);
        if new {
            block.push(name.to_owned());
        }
        new
    }

    /// Returns the text.
    pub fn finish(self) -> String {
        self.text
    }
}
