//! Texts that fit a schema and texts that do not, schemas that are refused.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Grammar, Matcher};

fn matcher(schema: &Value) -> Matcher {
    Matcher::new(Arc::new(Grammar::of_schema(schema).expect("a schema")))
}

/// Says whether a text is a whole one of the schema.
fn takes(schema: &Value, text: &str) -> bool {
    let mut matcher = matcher(schema);
    // In one piece and byte by byte is the same.
    let mut other = matcher.clone();
    let fits = matcher.push(text.as_bytes());
    assert_eq!(fits, text.bytes().all(|byte| other.push(&[byte])), "{text}");
    fits && matcher.is_whole()
}

#[test]
fn texts_of_a_schema_are_taken_and_others_not() {
    let person = json!({"type": "object", "required": ["name", "age"], "additionalProperties": false, "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"enum": ["a", "b c", 3]}, "minItems": 1, "maxItems": 2},
        "next": {"$ref": "#"},
        "size": {"anyOf": [{"type": "number"}, {"const": {"k": []}}]},
    }});
    for text in [
        r#"{"name": "x", "age": 3}"#,
        r#"{"age":null,"name":"é\u00e9\n\"y"}"#,
        r#" { "name" : "x" , "age" : -0 , "tags" : [ "b c" , 3 ] } "#.trim_end(),
        r#"{"next":{"name":"z","age":10},"name":"x","age":1,"size":-1.5e+3}"#,
        r#"{"name":"x","age":1,"size":{"k":[]}}"#,
    ] {
        assert!(takes(&person, text), "{text}");
    }
    for text in [
        r#"{"name": "x"}"#,
        r#"{"name": "", "age": 3}"#,
        r#"{"name": "abcdef", "age": 3}"#,
        r#"{"name": "x", "age": 3.5}"#,
        r#"{"name": "x", "age": 03}"#,
        r#"{"name": "x", "age": 3, "age": 4}"#,
        r#"{"name": "x", "age": 3,}"#,
        r#"{"name": "x", "age": 3, "tags": []}"#,
        r#"{"name": "x", "age": 3, "tags": ["a", "a", "a"]}"#,
        r#"{"name": "x", "age": 3, "tags": ["c"]}"#,
        r#"{"name": "x", "age": 3, "other": 1}"#,
        r#"{"name": "x", "age": 3, "next": {}}"#,
        r#"{"name": "x", "age": 3, "size": 1.}"#,
        r#"{"name": "x", "age": 3}}"#,
        "[]",
        "",
    ] {
        assert!(!takes(&person, text), "{text}");
    }
}

#[test]
fn named_properties_are_held_to_their_schemas_beside_others() {
    let schema = json!({"properties": {"n": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}});
    assert!(takes(&schema, r#"{"n": 1, "m": true, "nn": false}"#));
    assert!(!takes(&schema, r#"{"n": true}"#));
    assert!(!takes(&schema, r#"{"n": 1, "n": true}"#));
    assert!(!takes(&schema, r#"{"m": 1}"#));
}

#[test]
fn any_object_is_what_serde_reads() {
    let texts = [
        r#"{}"#,
        r#"{"a": [1, 2.5, -3e7, "x", null, true, {"b": []}]}"#,
        "{\"a\":\n\t[[[]]]}",
        r#"{"a": tru}"#,
        r#"{"a" 1}"#,
        r#"{"a": 1,, "b": 2}"#,
        r#"{"a": .5}"#,
        r#"{"a": "\x"}"#,
        r#"{a: 1}"#,
        "{\"a\": \"\n\"}",
    ];
    for text in texts {
        let mut matcher = Matcher::new(Arc::new(Grammar::object()));
        let taken = matcher.push(text.as_bytes()) && matcher.is_whole() && matcher.is_over();
        assert_eq!(taken, serde_json::from_str::<Value>(text).is_ok(), "{text}");
    }
    // Nothing but white space for ever is no way to go on; bytes that are no UTF-8 neither.
    let mut matcher = Matcher::new(Arc::new(Grammar::object()));
    assert!(!matcher.push(&[b' '; 100]) && !matcher.push(b"{\"\xff") && !matcher.push(b"{\"\xed\xa0\x80"));
    assert!(matcher.push("{\"日本".as_bytes()));
}

#[test]
fn what_is_not_supported_is_named_with_its_place() {
    for (schema, part) in [
        (
            json!({"properties": {"a": {"type": "string", "pattern": "x"}}}),
            "#/properties/a: the keyword \"pattern\"",
        ),
        (json!({"$ref": "#/$defs/x"}), "is no place"),
        (json!({"type": "text"}), "\"text\" is no type"),
        (
            json!({"required": ["a"], "type": "object"}),
            "\"a\" is none of the properties",
        ),
        (json!({"type": "array", "minItems": -1}), "minItems is -1"),
        (
            json!({"type": "array", "minItems": 3, "maxItems": 2}),
            "minItems is 3, and maxItems 2",
        ),
        (
            json!({"type": "string", "minLength": 1, "maxLength": 0}),
            "minLength is 1, and maxLength 0",
        ),
        (json!({"type": []}), "#/type: the name of a type"),
        (json!({"type": ["string", 3]}), "#/type: the name of a type"),
        (
            json!({"type": ["string", "null"], "items": true}),
            "the keyword \"items\"",
        ),
        (
            json!({"type": "object", "required": [3]}),
            "#/required: a list of names",
        ),
        (json!({"type": "object", "properties": []}), "#/properties: an object"),
        (json!({"enum": []}), "#/enum: a list"),
        (json!({"anyOf": []}), "#/anyOf: a list"),
        (json!({"allOf": [true, true]}), "#/allOf: one schema alone"),
        (
            json!({"items": {"properties": {"a": {"not": {}}}}}),
            "#/items/properties/a: the keyword \"not\"",
        ),
        (json!({"$ref": "#"}), "a choice without end"),
        (
            json!({"anyOf": [{"$ref": "#"}, {"$ref": "#/anyOf/0"}]}),
            "a choice without end",
        ),
        (json!(3), "is no schema"),
    ] {
        let message = Grammar::of_schema(&schema).expect_err("refused");
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn references_that_are_too_deep_are_refused() {
    let mut defs = serde_json::Map::new();
    for at in 0..3000 {
        defs.insert(format!("d{at}"), json!({"$ref": format!("#/$defs/d{}", at + 1)}));
    }
    defs.insert("d3000".to_owned(), json!({"type": "null"}));
    let message = Grammar::of_schema(&json!({"$ref": "#/$defs/d0", "$defs": defs})).expect_err("refused");
    assert!(message.contains("schemas within each other"), "{message}");
}

#[test]
fn choices_that_lead_to_themselves_are_read_once() {
    let itself = json!({"$ref": "#"});
    let list = json!({"type": "array", "items": itself});
    let schema = json!({"anyOf": [itself, itself, list, {"const": 1}]});
    assert!(takes(&schema, "[[1, [[]]], 1]"));
    assert!(takes(&schema, "1"));
    assert!(!takes(&schema, "[2]"));
    assert!(!takes(&schema, "[1 1]"));
}

#[test]
fn each_text_of_an_enumeration_can_be_written() {
    let names: Vec<Value> = (0..1000).map(|at| json!(format!("name {at}"))).collect();
    let schema = json!({"type": "array", "items": {"enum": names}});
    for name in &names {
        assert!(takes(&schema, &format!("[{name}]")), "{name}");
    }
    for text in [r#"["name 1000"]"#, r#"["name "]"#, r#"["name 01"]"#] {
        assert!(!takes(&schema, text), "{text}");
    }
    // One is the beginning of others.
    let schema = json!({"enum": [12, 1, 123, "a", "", null, {"a": [1]}, 12]});
    for text in ["1", "12", "123", "\"a\"", "\"\"", "null", r#"{"a":[1]}"#] {
        assert!(takes(&schema, text), "{text}");
    }
    for text in ["1234", "2", "nul", "13", "\"b\"", r#"{"a":[]}"#] {
        assert!(!takes(&schema, text), "{text}");
    }
}

#[test]
fn names_and_characters_have_no_second_spelling_that_is_not_checked() {
    let schema = json!({"properties": {"n/é": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}});
    assert!(takes(&schema, r#"{"n/é": 1, "m": true}"#));
    assert!(!takes(&schema, r#"{"n\/é": true}"#) && !takes(&schema, r#"{"n/\u00e9": true}"#));
    let string = json!({"type": "string"});
    for (text, fits) in [
        (r#""\ud7ff\uD0aF\u00e9""#, true),
        (r#""\ud800""#, false),
        (r#""\uDFFF""#, false),
        (r#""\u12g4""#, false),
    ] {
        assert_eq!(takes(&string, text), fits, "{text}");
        assert_eq!(serde_json::from_str::<Value>(text).is_ok(), fits, "{text}");
    }
}

#[test]
fn first_items_have_their_own_schemas() {
    let first = json!([{"type": "string"}, {"type": "boolean"}]);
    let schema = json!({"type": "array", "prefixItems": first, "items": {"type": "null"}});
    for text in ["[]", r#"["a"]"#, r#"["a", true]"#, r#"["a", false, null, null]"#] {
        assert!(takes(&schema, text), "{text}");
    }
    for text in ["[true]", r#"["a", null]"#, r#"["a", true, 1]"#, "[,]", r#"["a",]"#] {
        assert!(!takes(&schema, text), "{text}");
    }
    let closed = json!({"type": "array", "prefixItems": [{"const": 1}], "items": false});
    assert!(takes(&closed, "[1]") && !takes(&closed, "[1, 1]"));
    let none = json!({"type": "array", "items": false});
    assert!(takes(&none, "[ ]") && !takes(&none, "[1]"));
}

/// Whatever bytes are taken, more can follow or the text is whole.
#[test]
fn no_way_leads_nowhere() {
    let flags = json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3});
    let named = json!({
        "kind": {"enum": ["cat", "dog", 1]}, "key": flags, "k": {"type": "string", "maxLength": 3},
        "keys": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    });
    let closed = json!({"properties": named, "required": ["kind", "key"]});
    let named = json!({"a": {"type": "integer"}, "ab": {"$ref": "#"}});
    let open = json!({"properties": named, "additionalProperties": {"const": 1}});
    let mut state = 1u64;
    for (schema, round) in [closed, open]
        .iter()
        .flat_map(|schema| (0..200).map(move |round| (schema, round)))
    {
        let mut matcher = matcher(schema);
        let mut text = Vec::new();
        while !matcher.is_over() && text.len() < 200 {
            let fits: Vec<u8> = (0..=255).filter(|byte| matcher.clone().push(&[*byte])).collect();
            let context = String::from_utf8_lossy(&text).into_owned();
            assert!(!fits.is_empty(), "round {round}: {context}");
            // Spaces are left out, where something else goes on.
            let fewer: Vec<u8> = fits.iter().copied().filter(|byte| *byte > b' ').collect();
            let fits = if fewer.is_empty() { fits } else { fewer };
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let byte = fits[(state >> 33) as usize % fits.len()];
            assert!(matcher.push(&[byte]), "round {round}: {context}");
            text.push(byte);
        }
        if matcher.is_over() {
            serde_json::from_slice::<Value>(&text).expect("JSON");
        }
    }
}

#[test]
fn texts_are_as_deep_as_there_is_room_for() {
    let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let schema = json!({"type": "array", "items": {"$ref": "#"}});
    assert!(takes(&schema, &deep(100)));
    assert!(!takes(&schema, &deep(1000)));
}
