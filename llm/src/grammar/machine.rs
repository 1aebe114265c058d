//! Bytes against nodes: all ways to read them so far, each a stack of what is begun.

use std::sync::Arc;

use super::schema::{Grammar, Node, NodeId};

/// Ways to read a text at most: more than any schema of use has.
const WAYS: usize = 256;
/// White space in a row: a model that likes it would write nothing else.
const SPACES: u8 = 32;
/// Depth of a text at most.
const DEPTH: usize = 128;

/// A text so far, which can still become one of a schema.
#[derive(Clone, Debug)]
pub struct Matcher {
    grammar: Arc<Grammar>,
    ways: Vec<Vec<Frame>>,
    spaces: u8,
}

/// Something that is begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Frame {
    Value(NodeId),
    /// The first of a node's texts that go on from here, and how far it is.
    Text(NodeId, usize, usize),
    String(Quoted),
    Number(Digits, bool),
    Array {
        node: NodeId,
        items: usize,
        at: InArray,
    },
    Object {
        node: NodeId,
        seen: u64,
        at: InObject,
    },
}

/// A string: how many characters it has and may have, and where in one it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Quoted {
    characters: usize,
    least: usize,
    most: usize,
    /// Whether characters are written as they are: an escaped name could be a property's.
    is_plain: bool,
    at: InString,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InString {
    Between,
    Escape,
    /// So many digits of `\u` are missing.
    Hex(u8),
    /// The first digit is `d`: the second must not make a surrogate of it, which is no character.
    HexOfD,
    /// So many bytes of a character are missing, the next of which is in the range.
    Bytes(u8, u8, u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Digits {
    Sign,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    InExponent,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InArray {
    Begin,
    Item,
    BehindItem,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InObject {
    Begin,
    /// A name is wanted.
    Name,
    /// Of this property so many bytes of the name are there.
    NameOf(usize, usize),
    /// A name that is none of the properties' is being read above.
    OtherName,
    BehindName(Option<usize>),
    BehindValue,
}

impl Matcher {
    pub fn new(grammar: Arc<Grammar>) -> Matcher {
        let ways = vec![vec![Frame::Value(grammar.root)]];
        Matcher {
            grammar,
            ways,
            spaces: 0,
        }
    }

    /// Takes bytes, if they can go on like that; else nothing changes.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let mut next = self.clone();
        let fits = bytes.iter().all(|byte| next.byte(*byte));
        if fits {
            *self = next;
        }
        fits
    }

    /// Says whether the text is whole.
    pub fn is_whole(&self) -> bool {
        self.ways.iter().any(|way| match way[..] {
            [] => true,
            [Frame::Number(digits, _)] => digits.may_end(),
            _ => false,
        })
    }

    /// Says whether the text is whole, and nothing can follow.
    pub fn is_over(&self) -> bool {
        self.ways.iter().all(Vec::is_empty)
    }

    /// A name that is a property's is no other's, and each comes once.
    fn drop_names_twice(&mut self) {
        let known: Vec<(NodeId, usize)> = (self.ways.iter())
            .filter_map(|way| match innermost(way)? {
                (node, _, InObject::BehindName(Some(_)), depth) => Some((node, depth)),
                _ => None,
            })
            .collect();
        self.ways.retain(|way| match innermost(way) {
            Some((node, _, InObject::OtherName, depth)) => !known.contains(&(node, depth)),
            Some((_, seen, InObject::BehindName(Some(which)), _)) => seen >> which & 1 == 0,
            _ => true,
        });
    }

    fn byte(&mut self, byte: u8) -> bool {
        let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        let between = |way: &[Frame]| !matches!(way.last(), Some(Frame::String(_)));
        self.spaces = if is_space && self.ways.iter().all(|way| between(way)) {
            self.spaces + 1
        } else {
            0
        };
        if self.spaces > SPACES {
            return false;
        }
        let mut next = Vec::new();
        for way in std::mem::take(&mut self.ways) {
            step(&self.grammar.nodes, way, byte, &mut next);
        }
        next.dedup();
        self.ways = next;
        self.drop_names_twice();
        !self.ways.is_empty()
    }
}

/// What a way is in the middle of, if that is an object, and its depth.
fn innermost(way: &[Frame]) -> Option<(NodeId, u64, InObject, usize)> {
    match way.last() {
        Some(Frame::Object { node, seen, at }) => Some((*node, *seen, *at, way.len())),
        _ => None,
    }
}

/// Adds what becomes of a way with one more byte.
fn step(nodes: &[Node], mut way: Vec<Frame>, byte: u8, next: &mut Vec<Vec<Frame>>) {
    let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    let Some(top) = way.pop() else { return };
    let mut put = |mut way: Vec<Frame>, frames: &[Frame]| {
        way.extend_from_slice(frames);
        if way.len() <= DEPTH && next.len() < WAYS {
            next.push(way);
        }
    };
    match top {
        Frame::Value(_) if is_space => put(way, &[top]),
        Frame::Value(node) => begin(nodes, way, node, byte, next),
        Frame::Text(node, first, at) => in_texts(nodes, way, (node, first, at), byte, &mut put),
        Frame::String(quoted) => match quoted.step(byte) {
            Some(Some(quoted)) => put(way, &[Frame::String(quoted)]),
            Some(None) => put(way, &[]),
            None => {}
        },
        Frame::Number(digits, is_integer) => {
            if let Some(digits) = digits.step(byte, is_integer) {
                put(way, &[Frame::Number(digits, is_integer)]);
            } else if digits.may_end() {
                // The byte is of what is around the number; around a whole text nothing is.
                if !way.is_empty() {
                    step(nodes, way, byte, next);
                }
            }
        }
        Frame::Array { node, items, at } => {
            let Node::Array {
                first,
                others,
                least,
                most,
            } = &nodes[node]
            else {
                return;
            };
            let more = first
                .get(items)
                .copied()
                .or(*others)
                .filter(|_| most.is_none_or(|most| items < most));
            match (byte, at) {
                _ if is_space => put(way, &[top]),
                (b']', InArray::Begin | InArray::BehindItem) if items >= *least => put(way, &[]),
                (b',', InArray::BehindItem) if more.is_some() => {
                    let at = InArray::Item;
                    put(way, &[Frame::Array { node, items, at }]);
                }
                (_, InArray::Begin | InArray::Item) => {
                    let Some(item) = more else { return };
                    let (items, at) = (items + 1, InArray::BehindItem);
                    way.push(Frame::Array { node, items, at });
                    begin(nodes, way, item, byte, next);
                }
                _ => {}
            }
        }
        Frame::Object { node, seen, at } => in_object(nodes, way, (node, seen, at), byte, &mut put),
    }
}

/// As [`step`], within texts, which are sorted: those that share their first `at` bytes with the one at `first` are
/// one way.
fn in_texts(
    nodes: &[Node],
    way: Vec<Frame>,
    (node, first, at): (NodeId, usize, usize),
    byte: u8,
    put: &mut impl FnMut(Vec<Frame>, &[Frame]),
) {
    let Node::Texts(texts) = &nodes[node] else { return };
    let so_far = [&texts[first][..at], &[byte]].concat();
    let mut which = texts.partition_point(|text| *text < so_far);
    if texts.get(which) == Some(&so_far) {
        put(way.clone(), &[]);
        which += 1;
    }
    if texts.get(which).is_some_and(|text| text.starts_with(&so_far)) {
        put(way, &[Frame::Text(node, which, at + 1)]);
    }
}

/// As [`step`], within an object and between its values.
fn in_object(
    nodes: &[Node],
    way: Vec<Frame>,
    (node, seen, at): (NodeId, u64, InObject),
    byte: u8,
    put: &mut impl FnMut(Vec<Frame>, &[Frame]),
) {
    let Node::Object { properties, others } = &nodes[node] else {
        return;
    };
    let here = |at: InObject| Frame::Object { node, seen, at };
    let is_seen = |which: usize| seen >> which & 1 > 0;
    let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    match (byte, at) {
        (_, InObject::NameOf(which, read)) => {
            let name = &properties[which].name;
            if name.get(read) == Some(&byte) {
                let is_last = read + 1 == name.len();
                let behind = InObject::BehindName(Some(which));
                put(
                    way,
                    &[here(if is_last {
                        behind
                    } else {
                        InObject::NameOf(which, read + 1)
                    })],
                );
            }
        }
        _ if is_space => put(way, &[here(at)]),
        (b'}', InObject::Begin | InObject::BehindValue) => {
            let mut all = properties.iter().enumerate();
            if all.all(|(which, property)| !property.is_required || is_seen(which)) {
                put(way, &[]);
            }
        }
        (b',', InObject::BehindValue) => {
            let left = (0..properties.len()).any(|which| !is_seen(which));
            if left || others.is_some() {
                put(way, &[here(InObject::Name)]);
            }
        }
        (b'"', InObject::Begin | InObject::Name) => {
            // A name that was there is read beside others alone, to be told from them: it could not go on.
            for which in (0..properties.len()).filter(|which| !is_seen(*which) || others.is_some()) {
                put(way.clone(), &[here(InObject::NameOf(which, 1))]);
            }
            if others.is_some() {
                let name = Quoted {
                    is_plain: !properties.is_empty(),
                    ..Quoted::new(0, None)
                };
                put(way, &[here(InObject::OtherName), Frame::String(name)]);
            }
        }
        (b':', InObject::OtherName | InObject::BehindName(_)) => {
            let which = if let InObject::BehindName(which) = at {
                which
            } else {
                None
            };
            let value = match which {
                Some(which) => Some(properties[which].value),
                None => *others,
            };
            let seen = seen | which.map_or(0, |which| 1 << which);
            let at = InObject::BehindValue;
            if let Some(value) = value {
                put(way, &[Frame::Object { node, seen, at }, Frame::Value(value)]);
            }
        }
        _ => {}
    }
}

/// Adds the ways in which a byte begins a value.
fn begin(nodes: &[Node], way: Vec<Frame>, node: NodeId, byte: u8, next: &mut Vec<Vec<Frame>>) {
    let mut put = |mut way: Vec<Frame>, frames: &[Frame]| {
        way.extend_from_slice(frames);
        if way.len() <= DEPTH && next.len() < WAYS {
            next.push(way);
        }
    };
    let number = |is_integer: bool| {
        let digits = match byte {
            b'-' => Digits::Sign,
            b'0' => Digits::Zero,
            b'1'..=b'9' => Digits::Whole,
            _ => return None,
        };
        Some(Frame::Number(digits, is_integer))
    };
    let frame = match &nodes[node] {
        // None of these is such a choice itself.
        Node::Either(each) => {
            for one in each {
                begin(nodes, way.clone(), *one, byte, next);
            }
            return;
        }
        Node::Texts(_) => return in_texts(nodes, way, (node, 0, 0), byte, &mut put),
        Node::String { least, most } if byte == b'"' => Some(Frame::String(Quoted::new(*least, *most))),
        Node::Number { is_integer } => number(*is_integer),
        Node::Array { .. } if byte == b'[' => Some(Frame::Array {
            node,
            items: 0,
            at: InArray::Begin,
        }),
        Node::Object { .. } if byte == b'{' => Some(Frame::Object {
            node,
            seen: 0,
            at: InObject::Begin,
        }),
        _ => None,
    };
    if let Some(frame) = frame {
        put(way, &[frame]);
    }
}

impl Quoted {
    fn new(least: usize, most: Option<usize>) -> Quoted {
        Quoted {
            characters: 0,
            least,
            most: most.unwrap_or(usize::MAX),
            is_plain: false,
            at: InString::Between,
        }
    }

    /// The string with one more byte: `None` where it does not fit, `Some(None)` where that ends it.
    fn step(mut self, byte: u8) -> Option<Option<Quoted>> {
        let may_grow = self.characters < self.most;
        let (begins, at) = match (self.at, byte) {
            (InString::Between, b'"') => return (self.characters >= self.least).then_some(None),
            (InString::Between, b'\\') if self.is_plain => return None,
            (InString::Between, b'\\') => (true, InString::Escape),
            (InString::Between, 0x20..=0x7f) => (true, InString::Between),
            // UTF-8's second bytes: nothing written longer than it must be, no surrogates, nothing above U+10FFFF.
            (InString::Between, 0xc2..=0xdf) => (true, InString::Bytes(1, 0x80, 0xbf)),
            (InString::Between, 0xe0) => (true, InString::Bytes(2, 0xa0, 0xbf)),
            (InString::Between, 0xed) => (true, InString::Bytes(2, 0x80, 0x9f)),
            (InString::Between, 0xe1..=0xef) => (true, InString::Bytes(2, 0x80, 0xbf)),
            (InString::Between, 0xf0) => (true, InString::Bytes(3, 0x90, 0xbf)),
            (InString::Between, 0xf1..=0xf3) => (true, InString::Bytes(3, 0x80, 0xbf)),
            (InString::Between, 0xf4) => (true, InString::Bytes(3, 0x80, 0x8f)),
            (InString::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => (false, InString::Between),
            (InString::Escape, b'u') => (false, InString::Hex(4)),
            (InString::Hex(4), b'd' | b'D') => (false, InString::HexOfD),
            (InString::HexOfD, b'0'..=b'7') => (false, InString::Hex(2)),
            (InString::Hex(left), byte) if byte.is_ascii_hexdigit() => (
                false,
                if left > 1 {
                    InString::Hex(left - 1)
                } else {
                    InString::Between
                },
            ),
            (InString::Bytes(left, least, most), byte) if (least..=most).contains(&byte) => (
                false,
                if left > 1 {
                    InString::Bytes(left - 1, 0x80, 0xbf)
                } else {
                    InString::Between
                },
            ),
            _ => return None,
        };
        if begins && !may_grow {
            return None;
        }
        self.characters += usize::from(begins);
        self.at = at;
        Some(Some(self))
    }
}

impl Digits {
    fn may_end(self) -> bool {
        matches!(
            self,
            Digits::Zero | Digits::Whole | Digits::Fraction | Digits::InExponent
        )
    }

    fn step(self, byte: u8, is_integer: bool) -> Option<Digits> {
        Some(match (self, byte) {
            (Digits::Sign, b'0') => Digits::Zero,
            (Digits::Sign, b'1'..=b'9') | (Digits::Whole, b'0'..=b'9') => Digits::Whole,
            (Digits::Zero | Digits::Whole, b'.') if !is_integer => Digits::Point,
            (Digits::Point | Digits::Fraction, b'0'..=b'9') => Digits::Fraction,
            (Digits::Zero | Digits::Whole | Digits::Fraction, b'e' | b'E') if !is_integer => Digits::Exponent,
            (Digits::Exponent, b'+' | b'-') => Digits::ExponentSign,
            (Digits::Exponent | Digits::ExponentSign | Digits::InExponent, b'0'..=b'9') => Digits::InExponent,
            _ => return None,
        })
    }
}
