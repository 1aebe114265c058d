//! Texts that end an answer.

/// Looks for texts in a stream, and holds back what may become one of them.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    texts: Vec<String>,
    held: String,
}

impl Stops {
    /// Looks for any of these texts; empty ones are left out.
    pub fn new(texts: Vec<String>) -> Stops {
        Stops {
            texts: texts.into_iter().filter(|text| !text.is_empty()).collect(),
            held: String::new(),
        }
    }

    /// Adds text. Gives what can be shown, and whether one of the texts was found; what comes from there on is not
    /// shown.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let found = self.texts.iter().filter_map(|stop| self.held.find(stop)).min();
        if let Some(at) = found {
            let shown = self.held[..at].to_owned();
            self.held.clear();
            return (shown, true);
        }
        let kept = (self.texts.iter())
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// Ends the stream: what was held back is no such text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// The bytes at the end of `text` that `stop` begins with, less than all of it.
fn overlap(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    (1..=most)
        .rev()
        .find(|count| stop.is_char_boundary(*count) && text.as_bytes().ends_with(&stop.as_bytes()[..*count]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_found_across_pieces_and_nothing_of_it_is_shown() {
        let mut stops = Stops::new(vec!["END".to_owned(), "é!".to_owned(), String::new()]);
        assert_eq!(stops.push("text E"), ("text ".to_owned(), false));
        assert_eq!(stops.push("N"), (String::new(), false));
        assert_eq!(stops.push("Nx"), ("ENNx".to_owned(), false));
        assert_eq!(stops.push("a é"), ("a ".to_owned(), false));
        assert_eq!(stops.push("!END"), (String::new(), true));
        assert_eq!(stops.push("E"), (String::new(), false));
        assert_eq!(stops.finish(), "E");
    }

    #[test]
    fn without_stops_all_is_shown_at_once() {
        let mut stops = Stops::new(Vec::new());
        assert_eq!(stops.push("abc"), ("abc".to_owned(), false));
        assert_eq!(stops.finish(), "");
    }
}
