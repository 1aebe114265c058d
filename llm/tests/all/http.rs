//! A server of its own for each test, and a client of plain sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::data;

/// A server that is running; it ends with the value.
pub struct Server {
    pub child: Child,
    pub address: String,
}

impl Server {
    pub fn start(model: &str, options: &[&str]) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_graphc-llm"))
            .arg("serve")
            .arg(data(&format!("{model}.gguf")))
            .args(["--port", "0", "--threads", "1", "--quiet"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let address = line.trim().rsplit_once("http://").expect("an address").1.to_owned();
        Server { child, address }
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Sends a request and gives its connection; the answer is not read.
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .expect("a limit");
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        );
        // A server that refuses a body need not read it.
        stream.write_all(text.as_bytes()).ok();
        stream
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_text(path, &body.to_string())
    }

    pub fn post_text(&self, path: &str, body: &str) -> (u16, Value) {
        let (status, text) = answer(self.send("POST", path, "", body));
        (
            status,
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}")),
        )
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        answer(self.send("GET", path, "", ""))
    }

    /// A number of `/metrics`.
    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.get("/metrics");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("graphc_llm_{name} ")));
        let number = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        number.parse().expect("an integer")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The status and the body of an answer.
pub fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    // A server that refuses a body may close before it is sent.
    stream.read_to_end(&mut bytes).ok();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .expect("a status");
    let body = &bytes[end + 4..];
    let body = match head.contains("transfer-encoding: chunked") {
        true => joined(body),
        false => body.to_vec(),
    };
    (status, String::from_utf8(body).expect("whole characters"))
}

/// Chunks without their lengths.
fn joined(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(&String::from_utf8_lossy(&bytes[..end]), 16).expect("a length");
        if length == 0 {
            break;
        }
        all.extend_from_slice(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 4 + length..];
    }
    all
}

/// The objects of a stream, without its end, which must be there.
pub fn events(text: &str) -> Vec<Value> {
    let mut parts: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(parts.pop(), Some("data: [DONE]"), "{text}");
    let object = |part: &&str| {
        let text = part.strip_prefix("data: ").expect("data");
        serde_json::from_str(text).expect("JSON")
    };
    parts.iter().map(object).collect()
}
