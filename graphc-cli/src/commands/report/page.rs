//! The page: style, script and data in one file.

use serde_json::Value;

const STYLE: &str = include_str!("page.css");
/// In this order: each uses what stands before it.
const SCRIPTS: [&str; 4] = [
    include_str!("draw.js"),
    include_str!("graph.js"),
    include_str!("charts.js"),
    include_str!("page.js"),
];
const BODY: &str = include_str!("page.html");

/// Puts the page together.
pub fn page(data: &Value) -> String {
    let title = data["contents"]["name"].as_str().unwrap_or("model");
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{} - graphc</title>\n<style>\n{STYLE}</style>\n\
         </head>\n<body>\n{BODY}<script type=\"application/json\" id=\"data\">\n{}\n</script>\n<script>\n\"use strict\";\n",
        escaped(title),
        inert(&data.to_string())
    );
    for script in SCRIPTS {
        page += script;
    }
    page += "</script>\n</body>\n</html>\n";
    page
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// JSON in which nothing ends or begins a tag: `<` occurs in strings alone, where it may be written as an escape.
fn inert(json: &str) -> String {
    json.replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_end_the_script() {
        let name = "</script><script>alert(1)</script>";
        let page = page(&serde_json::json!({ "contents": { "name": name } }));
        assert_eq!(page.matches("</script>").count(), 2, "the data's and the script's own");
        assert!(page.contains("<title>&lt;/script>"));
        let data = page
            .split("id=\"data\">\n")
            .nth(1)
            .and_then(|rest| rest.split("\n</script>").next());
        let back: Value = serde_json::from_str(data.unwrap()).unwrap();
        assert_eq!(back["contents"]["name"], name);
    }
}
