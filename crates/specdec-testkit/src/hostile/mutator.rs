use serde_json::{Map, Number, Value};

/// Changes input at random; what it does is a function of its seed.
#[derive(Debug, Clone)]
pub struct Mutator {
    state: u64,
}

/// Sizes at the edges of types, and of what a reader may believe.
const SIZES: [u64; 16] = [
    0,
    1,
    2,
    3,
    7,
    8,
    31,
    255,
    1 << 16,
    (1 << 24) + 1,
    1 << 31,
    1 << 32,
    (1 << 53) + 1,
    1 << 62,
    u64::MAX - 7,
    u64::MAX,
];

/// Names that a path or a key should not have.
const NAMES: [&str; 10] = [
    "",
    "..",
    "../outside",
    "/etc/hostname",
    "a/../../outside",
    "\u{0}",
    "C:\\outside",
    "\u{10ffff}\u{301}",
    "type",
    "<|im_end|>",
];

impl Mutator {
    /// A mutator of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when that is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// One of these. Not empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// A size, often one at an edge.
    pub fn size(&mut self) -> u64 {
        match self.below(4) {
            0 => self.next() >> self.below(64),
            _ => *self.pick(&SIZES),
        }
    }

    /// Bytes with one change: flipped, overwritten with a size, cut, repeated, taken out or put in. Changes
    /// are near the beginning as often as anywhere, since that is where headers are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        if out.is_empty() {
            return vec![self.next() as u8];
        }
        let near = match self.below(4) {
            0 => out.len(),
            1 => out.len().min(64),
            _ => out.len().min(2048),
        };
        let at = self.below(near);
        let to = at + self.below((out.len() - at).min(64)) + 1;
        match self.below(9) {
            0 | 1 => out[at] ^= 1 << self.below(8),
            2 => out[at] = *self.pick(&[0, 1, 0x7f, 0x80, 0xff, b'"', b'{', b'[', b'9', b'\\']),
            3 | 4 => {
                let size = self.size().to_le_bytes();
                let width = *self.pick(&[4, 8]);
                for (byte, new) in out[at..].iter_mut().zip(&size[..width]) {
                    *byte = *new;
                }
            }
            5 => out.truncate(self.below(out.len())),
            6 => {
                let part = out[at..to.min(bytes.len())].to_vec();
                out.splice(at..at, part);
            }
            7 => drop(out.drain(at..to.min(bytes.len()))),
            _ => out.insert(at, self.next() as u8),
        }
        out
    }

    /// JSON with a change somewhere in it; now and then, and where it is no JSON, one of its bytes.
    pub fn json(&mut self, text: &[u8]) -> Vec<u8> {
        match serde_json::from_slice::<Value>(text) {
            Ok(mut value) if self.below(8) > 0 => {
                self.value(&mut value);
                value.to_string().into_bytes()
            }
            _ => self.bytes(text),
        }
    }

    /// A safetensors file with a change in its header, whose length is made to fit most of the time, or
    /// anywhere.
    pub fn safetensors(&mut self, file: &[u8]) -> Vec<u8> {
        let header = file.split_first_chunk::<8>().and_then(|(size, rest)| {
            let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
            rest.split_at_checked(size)
        });
        match header {
            Some((header, data)) if self.below(8) > 0 => {
                let header = self.json(header);
                let size = match self.below(16) {
                    0 => self.size(),
                    _ => header.len() as u64,
                };
                [&size.to_le_bytes(), &header[..], data].concat()
            }
            _ => self.bytes(file),
        }
    }

    /// Text with one of these words put in or put over others, or with a change in its bytes.
    pub fn text(&mut self, text: &[u8], words: &[&str]) -> Vec<u8> {
        let Some(text) = std::str::from_utf8(text).ok().filter(|_| self.below(4) > 0) else {
            return self.bytes(text);
        };
        let edges: Vec<usize> = text
            .char_indices()
            .map(|(at, _)| at)
            .chain([text.len()])
            .collect();
        let at = *self.pick(&edges);
        let word = *self.pick(words);
        let end = match self.below(3) {
            0 => *self.pick(&edges),
            _ => at,
        };
        let (at, end) = (at.min(end), at.max(end));
        [&text[..at], word, &text[end..]].concat().into_bytes()
    }

    /// Changes one value, key or list inside.
    fn value(&mut self, value: &mut Value) {
        let count = nodes(value);
        let donor = self.below(count);
        let donor = node(value, donor).cloned().unwrap_or_default();
        let at = self.below(count);
        let mut left = at;
        if let Some(found) = node_mut(value, &mut left) {
            self.change(found, donor);
        }
    }

    fn change(&mut self, value: &mut Value, donor: Value) {
        match value {
            Value::Object(map) if self.below(4) > 0 => self.object(map, donor),
            Value::Array(list) if self.below(4) > 0 => self.list(list, donor),
            _ => {
                *value = match self.below(10) {
                    0..4 => self.number(),
                    4 => Value::Null,
                    5 => Value::Bool(self.below(2) == 0),
                    6 => Value::from(*self.pick(&NAMES)),
                    7 => Value::from("a".repeat(self.below(5000))),
                    8 => (0..self.below(100)).fold(donor, |inner, _| Value::Array(vec![inner])),
                    _ => donor,
                }
            }
        }
    }

    fn number(&mut self) -> Value {
        let float = |x: f64| Number::from_f64(x).map_or(Value::Null, Value::Number);
        match self.below(6) {
            0 => Value::from(-((self.size() >> 1) as i64)),
            1 => float(*self.pick(&[0.5, -0.0, 1e-320, 1e308, -1e308, 1e19, 0.1])),
            _ => Value::from(self.size()),
        }
    }

    fn object(&mut self, map: &mut Map<String, Value>, donor: Value) {
        let keys: Vec<String> = map.keys().cloned().collect();
        let Some(key) = keys.get(self.below(keys.len())) else {
            map.insert((*self.pick(&NAMES)).to_owned(), donor);
            return;
        };
        match self.below(4) {
            0 => drop(map.remove(key)),
            1 => drop(map.insert(key.clone(), donor)),
            2 => {
                let value = map.remove(key).unwrap_or_default();
                map.insert((*self.pick(&NAMES)).to_owned(), value);
            }
            _ => {
                let other = self.pick(&keys).clone();
                let value = map.get(key).cloned().unwrap_or_default();
                map.insert(other, value);
            }
        }
    }

    fn list(&mut self, list: &mut Vec<Value>, donor: Value) {
        let at = self.below(list.len());
        match self.below(4) {
            0 if !list.is_empty() => drop(list.remove(at)),
            1 if !list.is_empty() => {
                let times = 1 + self.below(64);
                let again = vec![list[at].clone(); times];
                list.splice(at..at, again);
            }
            2 if !list.is_empty() => list[at] = donor,
            _ => list.insert(at, donor),
        }
    }
}

/// Number of values in a value, itself included.
fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(nodes).sum(),
        Value::Object(map) => map.values().map(nodes).sum(),
        _ => 0,
    }
}

fn node(value: &Value, at: usize) -> Option<&Value> {
    let mut left = at;
    find(value, &mut left)
}

fn find<'a>(value: &'a Value, left: &mut usize) -> Option<&'a Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter().find_map(|inner| find(inner, left)),
        Value::Object(map) => map.values().find_map(|inner| find(inner, left)),
        _ => None,
    }
}

fn node_mut<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|inner| node_mut(inner, left)),
        Value::Object(map) => map.values_mut().find_map(|inner| node_mut(inner, left)),
        _ => None,
    }
}
