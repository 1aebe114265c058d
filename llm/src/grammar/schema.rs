//! A schema to nodes.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A place of a node in its [`Grammar`].
pub(super) type NodeId = usize;

/// What a value may be.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Node {
    /// One of these texts, which are sorted.
    Texts(Vec<Vec<u8>>),
    /// A string of so many characters.
    String {
        least: usize,
        most: Option<usize>,
    },
    Number {
        is_integer: bool,
    },
    Array {
        /// The first items have their own schemas.
        first: Vec<NodeId>,
        others: Option<NodeId>,
        least: usize,
        most: Option<usize>,
    },
    Object {
        properties: Vec<Property>,
        /// The schema of properties that are not named.
        others: Option<NodeId>,
    },
    /// Any of these, none of which is such a choice itself.
    Either(Vec<NodeId>),
}

/// A property of an object.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Property {
    /// Its name as JSON, in quotes.
    pub name: Vec<u8>,
    pub value: NodeId,
    pub is_required: bool,
}

/// A schema that texts are held to.
#[derive(Clone, PartialEq, Debug)]
pub struct Grammar {
    pub(super) nodes: Vec<Node>,
    pub(super) root: NodeId,
}

/// Keywords that say nothing about which texts there are.
const NOTES: &[&str] = &[
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
];
/// Nodes of a schema at most, and values that an enumeration has at most.
const MOST: usize = 4096;
/// Schemas within each other at most: they are read by recursion.
const DEPTH: usize = 64;

/// The node of all values, which every grammar begins with, and that of all objects.
const ANY: NodeId = 0;
const OBJECT: NodeId = 1;

/// All values.
fn any() -> Vec<Node> {
    let (least, most, others) = (0, None, Some(ANY));
    let texts = ["false", "null", "true"].map(|text| text.as_bytes().to_vec());
    vec![
        Node::Either(vec![OBJECT, 2, 3, 4, 5]),
        Node::Object {
            properties: Vec::new(),
            others,
        },
        Node::Array {
            first: Vec::new(),
            others,
            least,
            most,
        },
        Node::String { least, most },
        Node::Number { is_integer: false },
        Node::Texts(texts.to_vec()),
    ]
}

impl Grammar {
    /// Objects of any properties.
    pub fn object() -> Grammar {
        Grammar {
            nodes: any(),
            root: OBJECT,
        }
    }

    /// Reads a schema.
    ///
    /// # Errors
    /// The place of a keyword that is not supported, or of a value that it cannot have.
    pub fn of_schema(schema: &Value) -> Result<Grammar, String> {
        let mut reader = Reader {
            whole: schema,
            nodes: any(),
            references: BTreeMap::new(),
            depth: 0,
        };
        let root = reader.node(schema, "#")?;
        let choices = reader.nodes.iter().enumerate();
        let choices = choices.filter(|(_, node)| matches!(node, Node::Either(_)));
        let flat: Vec<(NodeId, Vec<NodeId>)> = choices.map(|(at, _)| (at, leaves(&reader.nodes, at))).collect();
        for (at, leaves) in flat {
            if leaves.is_empty() {
                return Err("the schema has a choice without end: a '$ref' leads to itself".to_owned());
            }
            reader.nodes[at] = Node::Either(leaves);
        }
        Ok(Grammar {
            nodes: reader.nodes,
            root,
        })
    }
}

/// The nodes that a choice leads to and that are none, each once.
fn leaves(nodes: &[Node], choice: NodeId) -> Vec<NodeId> {
    let (mut leaves, mut rest, mut is_seen) = (Vec::new(), vec![choice], vec![false; nodes.len()]);
    while let Some(node) = rest.pop() {
        if std::mem::replace(&mut is_seen[node], true) {
            continue;
        }
        match &nodes[node] {
            Node::Either(each) => rest.extend(each.iter().rev()),
            _ => leaves.push(node),
        }
    }
    leaves
}

struct Reader<'a> {
    whole: &'a Value,
    nodes: Vec<Node>,
    references: BTreeMap<String, NodeId>,
    depth: usize,
}

impl Reader<'_> {
    fn add(&mut self, node: Node, at: &str) -> Result<NodeId, String> {
        if self.nodes.len() == MOST {
            return Err(format!("{at}: the schema has more than {MOST} parts"));
        }
        self.nodes.push(node);
        Ok(self.nodes.len() - 1)
    }

    fn add_texts(&mut self, mut texts: Vec<Vec<u8>>, at: &str) -> Result<NodeId, String> {
        texts.sort_unstable();
        texts.dedup();
        self.add(Node::Texts(texts), at)
    }

    /// Makes the node of a schema at a place.
    fn node(&mut self, schema: &Value, at: &str) -> Result<NodeId, String> {
        if self.depth == DEPTH {
            return Err(format!("{at}: more than {DEPTH} schemas within each other"));
        }
        self.depth += 1;
        let node = self.of(schema, at)?;
        self.depth -= 1;
        Ok(node)
    }

    fn of(&mut self, schema: &Value, at: &str) -> Result<NodeId, String> {
        let object = match schema {
            Value::Bool(true) => return Ok(ANY),
            Value::Object(object) => object,
            _ => return Err(format!("{at} is no schema: an object is wanted")),
        };
        if let Some(reference) = object.get("$ref") {
            only(object, &["$ref"], at)?;
            return self.reference(reference, at);
        }
        if let Some(values) = object.get("enum").or(object.get("const")) {
            only(object, &["enum", "const", "type"], at)?;
            let values = match (object.get("enum"), values) {
                (Some(_), Value::Array(values)) if (1..=MOST).contains(&values.len()) => values.clone(),
                (None, value) => vec![value.clone()],
                _ => return Err(format!("{at}/enum: a list of 1 to {MOST} values is wanted")),
            };
            let texts = values.iter().map(|value| value.to_string().into_bytes());
            return self.add_texts(texts.collect(), at);
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            let Some(list) = object.get(name) else { continue };
            only(object, &[name, "type"], at)?;
            let list = match list {
                Value::Array(list) if !list.is_empty() && (name != "allOf" || list.len() == 1) => list,
                _ if name == "allOf" => return Err(format!("{at}/allOf: one schema alone is supported")),
                _ => return Err(format!("{at}/{name}: a list of schemas is wanted")),
            };
            let nodes = list.iter().enumerate();
            let nodes = nodes.map(|(i, one)| self.node(one, &format!("{at}/{name}/{i}")));
            let either = Node::Either(nodes.collect::<Result<_, _>>()?);
            return self.add(either, at);
        }
        match object.get("type") {
            Some(Value::String(ty)) => self.typed(object, ty, at),
            Some(Value::Array(types)) if !types.is_empty() && types.iter().all(Value::is_string) => {
                let types: Vec<&str> = types.iter().filter_map(Value::as_str).collect();
                let keywords = types.iter().flat_map(|ty| of_type(ty)).copied();
                only(object, &keywords.chain(["type"]).collect::<Vec<_>>(), at)?;
                let mut nodes = Vec::new();
                for ty in types {
                    let own = |(name, _): &(&String, &Value)| of_type(ty).contains(&name.as_str());
                    let part = object.iter().filter(own).map(|(k, v)| (k.clone(), v.clone()));
                    nodes.push(self.typed(&part.collect(), ty, at)?);
                }
                self.add(Node::Either(nodes), at)
            }
            Some(_) => Err(format!("{at}/type: the name of a type, or a list of them, is wanted")),
            None if object.contains_key("properties") => self.typed(object, "object", at),
            None if object.contains_key("items") => self.typed(object, "array", at),
            None => {
                only(object, &[], at)?;
                Ok(ANY)
            }
        }
    }

    /// Makes the node of a schema of one type.
    fn typed(&mut self, object: &Map<String, Value>, ty: &str, at: &str) -> Result<NodeId, String> {
        only(object, &[of_type(ty), &["type"]].concat(), at)?;
        let node = match ty {
            "null" => return self.add_texts(vec![b"null".to_vec()], at),
            "boolean" => return self.add_texts(vec![b"true".to_vec(), b"false".to_vec()], at),
            "integer" | "number" => Node::Number {
                is_integer: ty == "integer",
            },
            "string" => {
                let (least, most) = counts(object, ["minLength", "maxLength"], at)?;
                Node::String { least, most }
            }
            "array" => {
                let mut first = Vec::new();
                if let Some(items) = object.get("prefixItems") {
                    let items = items
                        .as_array()
                        .ok_or_else(|| format!("{at}/prefixItems: a list is wanted"))?;
                    for (i, item) in items.iter().enumerate() {
                        first.push(self.node(item, &format!("{at}/prefixItems/{i}"))?);
                    }
                }
                let others = self.others(object, "items", !first.is_empty(), at)?;
                let (least, most) = counts(object, ["minItems", "maxItems"], at)?;
                Node::Array {
                    first,
                    others,
                    least,
                    most,
                }
            }
            "object" => self.object(object, at)?,
            other => return Err(format!("{at}/type: {other:?} is no type of JSON")),
        };
        self.add(node, at)
    }

    fn object(&mut self, object: &Map<String, Value>, at: &str) -> Result<Node, String> {
        let required: Vec<&str> = match object.get("required") {
            None => Vec::new(),
            Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
                names.iter().filter_map(Value::as_str).collect()
            }
            Some(_) => return Err(format!("{at}/required: a list of names is wanted")),
        };
        let named = match object.get("properties") {
            None => &Map::new(),
            Some(Value::Object(named)) => named,
            Some(_) => return Err(format!("{at}/properties: an object is wanted")),
        };
        let mut properties = Vec::new();
        for (name, schema) in named {
            properties.push(Property {
                name: json!(name).to_string().into_bytes(),
                value: self.node(schema, &format!("{at}/properties/{name}"))?,
                is_required: required.contains(&name.as_str()),
            });
        }
        let others = self.others(object, "additionalProperties", !named.is_empty(), at)?;
        if let Some(name) = required.iter().find(|name| !named.contains_key(**name)) {
            return Err(format!("{at}/required: {name:?} is none of the properties"));
        }
        if properties.len() > 64 {
            return Err(format!(
                "{at}/properties: {} of them; at most 64 are supported",
                properties.len()
            ));
        }
        Ok(Node::Object { properties, others })
    }

    /// The schema of what has none of its own. Where nothing is said, that is any, and nothing beside what is named.
    fn others(
        &mut self,
        object: &Map<String, Value>,
        name: &str,
        are_named: bool,
        at: &str,
    ) -> Result<Option<NodeId>, String> {
        match object.get(name) {
            Some(Value::Bool(false)) => Ok(None),
            Some(schema) => Ok(Some(self.node(schema, &format!("{at}/{name}"))?)),
            None => Ok((!are_named).then_some(ANY)),
        }
    }

    fn reference(&mut self, reference: &Value, at: &str) -> Result<NodeId, String> {
        let whole = self.whole;
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#'));
        let found = pointer.and_then(|pointer| Some((pointer, whole.pointer(pointer)?)));
        let Some((pointer, schema)) = found else {
            return Err(format!("{at}/$ref: {reference} is no place in the schema"));
        };
        if let Some(known) = self.references.get(pointer) {
            return Ok(*known);
        }
        // A schema may be within itself.
        let place = self.add(Node::Either(Vec::new()), at)?;
        self.references.insert(pointer.to_owned(), place);
        let node = self.node(schema, &format!("#{pointer}"))?;
        self.nodes[place] = Node::Either(vec![node]);
        Ok(place)
    }
}

/// Refuses keywords other than some.
fn only(object: &Map<String, Value>, known: &[&str], at: &str) -> Result<(), String> {
    match object
        .keys()
        .find(|name| !is_note(name) && !known.contains(&name.as_str()))
    {
        Some(name) => Err(unknown(name, at)),
        None => Ok(()),
    }
}

fn is_note(name: &str) -> bool {
    NOTES.contains(&name)
}

fn unknown(name: &str, at: &str) -> String {
    format!("{at}: the keyword {name:?} is not supported here; leave it out")
}

/// The keywords of a type.
fn of_type(ty: &str) -> &'static [&'static str] {
    match ty {
        "string" => &["minLength", "maxLength"],
        "array" => &["items", "prefixItems", "minItems", "maxItems"],
        "object" => &["properties", "required", "additionalProperties"],
        _ => &[],
    }
}

fn count(object: &Map<String, Value>, name: &str, at: &str) -> Result<Option<usize>, String> {
    match object.get(name) {
        None => Ok(None),
        Some(value) => match value.as_u64() {
            Some(count) => Ok(Some(count as usize)),
            None => Err(format!("{at}/{name} is {value}; an integer of 0 or more is wanted")),
        },
    }
}

/// The least and the most of something.
fn counts(object: &Map<String, Value>, [least, most]: [&str; 2], at: &str) -> Result<(usize, Option<usize>), String> {
    match (count(object, least, at)?.unwrap_or(0), count(object, most, at)?) {
        (few, Some(many)) if few > many => Err(format!("{at}: {least} is {few}, and {most} {many}")),
        both => Ok(both),
    }
}
