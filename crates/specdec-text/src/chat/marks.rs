//! Telling a conversation's words from the template's own, character by character, through whatever the template
//! does to them.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::{
    automaton::{Automaton, State},
    tokenizer::Protected,
};

/// How much of the words is marked. The more, the safer; the less, the more a template can look into them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Everything that is visible.
    All,
    /// The same, less the strings that the template itself compares with.
    ButLiterals,
    /// Of that, the punctuation that special tokens are made of.
    Punctuation,
}

impl Extent {
    pub(super) const ORDER: [Self; 3] = [Self::All, Self::ButLiterals, Self::Punctuation];
}

/// What a marker has to know of the tokenizer and the template.
#[derive(Debug)]
pub(super) struct Context<'a> {
    /// The special tokens.
    guarded: &'a [String],
    occurrences: Automaton,
    literals: Automaton,
    punctuation: HashSet<char>,
    /// Whether characters outside ASCII may turn into special tokens.
    foreign: bool,
}

impl<'a> Context<'a> {
    pub(super) fn new(guarded: &'a [String], normalizing: bool, literals: &[String]) -> Self {
        let occurrences = Automaton::new(guarded.iter().map(String::as_bytes));
        let spells = |text: &str| guarded.iter().any(|token| text.contains(token.as_str()));
        let literals = literals
            .iter()
            .filter(|text| !spells(text))
            .map(String::as_bytes);
        let punctuation = guarded
            .iter()
            .flat_map(|token| token.chars())
            .filter(|character| !character.is_alphanumeric() && !character.is_whitespace())
            .collect();
        Self {
            guarded,
            occurrences,
            literals: Automaton::new(literals),
            punctuation,
            foreign: normalizing,
        }
    }

    /// Whether a text has a special token in it.
    pub(super) fn spells(&self, text: &str) -> bool {
        self.guarded
            .iter()
            .any(|token| text.contains(token.as_str()))
    }
}

/// Replaces characters with private ones that occur nowhere else, and finds them again.
pub(super) struct Marker<'a> {
    context: &'a Context<'a>,
    extent: Extent,
    /// Characters that the pool must not use.
    taken: &'a HashSet<char>,
    next: u32,
    mark_of: HashMap<char, char>,
    marked: HashMap<char, char>,
    exhausted: bool,
}

/// Where the private characters begin that are used as marks: planes 15 and 16.
const FIRST: u32 = 0xF_0000;

/// The characters of a text that could be taken for marks.
pub(super) fn private(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars()
        .filter(|&character| u32::from(character) >= FIRST)
}

impl<'a> Marker<'a> {
    pub(super) fn new(context: &'a Context<'a>, extent: Extent, taken: &'a HashSet<char>) -> Self {
        Self {
            context,
            extent,
            taken,
            next: FIRST,
            mark_of: HashMap::new(),
            marked: HashMap::new(),
            exhausted: false,
        }
    }

    /// Whether there were too few marks.
    pub(super) fn exhausted(&self) -> bool {
        self.exhausted
    }

    /// The text with its characters marked.
    pub(super) fn text(&mut self, text: &str) -> String {
        let (mut forced, mut exempt) = (vec![false; text.len()], vec![false; text.len()]);
        let (mut tokens, mut literals) = (State::default(), State::default());
        for (index, &byte) in text.as_bytes().iter().enumerate() {
            tokens = self.context.occurrences.step(tokens, byte);
            for (_, length) in self.context.occurrences.matches(tokens) {
                forced[index + 1 - length] = true;
            }
            literals = self.context.literals.step(literals, byte);
            if let Some((_, length)) = self.context.literals.matches(literals).next() {
                exempt[index + 1 - length..=index].fill(true);
            }
        }
        text.char_indices()
            .map(|(at, character)| {
                if forced[at] || self.wants(character, exempt[at]) {
                    self.mark(character)
                } else {
                    character
                }
            })
            .collect()
    }

    fn wants(&self, character: char, exempt: bool) -> bool {
        if character.is_whitespace() || matches!(character, '"' | '\'' | '\\') {
            return false;
        }
        match self.extent {
            Extent::All => true,
            Extent::ButLiterals => !exempt,
            Extent::Punctuation => {
                let risky = self.context.punctuation.contains(&character)
                    || (self.context.foreign && !character.is_ascii());
                risky && !exempt
            }
        }
    }

    fn mark(&mut self, character: char) -> char {
        if let Some(&mark) = self.mark_of.get(&character) {
            return mark;
        }
        while self.next <= u32::from(char::MAX) {
            let mark = char::from_u32(self.next);
            self.next += 1;
            if let Some(mark) = mark
                && !self.taken.contains(&mark)
            {
                self.mark_of.insert(character, mark);
                self.marked.insert(mark, character);
                return mark;
            }
        }
        self.exhausted = true;
        character
    }

    /// JSON with its strings marked. Keys are how templates find things, so they are marked only where they spell a
    /// special token.
    pub(super) fn json(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(list) => list.iter().map(|item| self.json(item)).collect(),
            Value::Object(map) => Value::Object(self.object(map)),
            other => other.clone(),
        }
    }

    pub(super) fn object(&mut self, map: &Map<String, Value>) -> Map<String, Value> {
        map.iter()
            .map(|(key, value)| {
                let key = if self.context.spells(key) {
                    self.text(key)
                } else {
                    key.clone()
                };
                (key, self.json(value))
            })
            .collect()
    }

    /// The rendered text with the marks undone, and where they were.
    pub(super) fn undo(&self, rendered: &str) -> (String, Protected) {
        let (mut text, mut protected) =
            (String::with_capacity(rendered.len()), Protected::default());
        for character in rendered.chars() {
            let start = text.len();
            match self.marked.get(&character) {
                Some(&original) => {
                    text.push(original);
                    protected.add(start..text.len());
                }
                None => text.push(character),
            }
        }
        (text, protected)
    }
}

/// The quoted strings inside a template's tags.
pub(super) fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(open) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        let close = if rest[open..].starts_with("{{") {
            "}}"
        } else {
            "%}"
        };
        let mut at = open + 2;
        while at < rest.len() && !rest[at..].starts_with(close) {
            let Some(first) = rest[at..].chars().next() else {
                break;
            };
            at += first.len_utf8();
            if first == '"' || first == '\'' {
                at += quoted(&rest[at..], first, &mut found);
            }
        }
        rest = &rest[at.min(rest.len())..];
    }
    found.sort();
    found.dedup();
    found
}

/// Reads a string up to its closing quote; returns its length in the source.
fn quoted(source: &str, quote: char, found: &mut Vec<String>) -> usize {
    let mut text = String::new();
    let mut characters = source.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some((_, 'n')) => text.push('\n'),
                Some((_, 't')) => text.push('\t'),
                Some((_, 'r')) => text.push('\r'),
                Some((_, escaped)) => text.push(escaped),
                None => break,
            },
            _ if character == quote => {
                if !text.is_empty() {
                    found.push(text);
                }
                return at + 1;
            }
            _ => text.push(character),
        }
    }
    source.len()
}
