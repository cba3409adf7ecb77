//! Limits of a template's source. The engine's compiler tries to compute every part of an expression
//! beforehand, which takes time in proportion to the square of its length.

use super::template_error;
use crate::error::Result;

/// Longest template in bytes; real ones have a quarter of it.
const MAX_SOURCE: usize = 1 << 17;
/// Longest tag in bytes.
const MAX_TAG: usize = 1 << 13;

/// Refuses a template that would take long to compile.
pub(super) fn check(source: &str, name: &str) -> Result<()> {
    let (what, bytes, most) = if source.len() > MAX_SOURCE {
        ("it", source.len(), MAX_SOURCE)
    } else {
        ("a tag", longest_tag(source.as_bytes()), MAX_TAG)
    };
    if bytes <= most {
        return Ok(());
    }
    let reason = format!("{what} has {bytes} bytes, {most} at the most are read");
    Err(template_error(name, reason))
}

/// Bytes of the longest tag, strings in it included. A tag does not end inside of brackets.
fn longest_tag(source: &[u8]) -> usize {
    let (mut longest, mut at) = (0, 0);
    while at + 1 < source.len() {
        let close: &[u8] = match &source[at..at + 2] {
            b"{{" => b"}}",
            b"{%" => b"%}",
            b"{#" => b"#}",
            _ => {
                at += 1;
                continue;
            }
        };
        let start = at;
        at += 2;
        let mut open = 0i64;
        while at < source.len() && !(open == 0 && source[at..].starts_with(close)) {
            let code = close != b"#}";
            at = match source[at] {
                quote @ (b'"' | b'\'') if code => after_string(source, at + 1, quote),
                byte => {
                    match byte {
                        b'(' | b'[' | b'{' if code => open += 1,
                        b')' | b']' | b'}' if code => open -= 1,
                        _ => {}
                    }
                    at + 1
                }
            };
        }
        if close != b"#}" {
            longest = longest.max(at.min(source.len()) - start);
        }
    }
    longest
}

/// Where a string ends that begins at `at`.
fn after_string(source: &[u8], mut at: usize, quote: u8) -> usize {
    while at < source.len() && source[at] != quote {
        at += if source[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

#[cfg(test)]
mod tests {
    use super::longest_tag;

    #[test]
    fn tags_end_where_the_engine_ends_them() {
        for (source, length) in [
            ("", 0),
            ("no tag { at } all", 0),
            ("a{{ b }}c", 5),
            ("{# a comment that's (long {{ :) #}{%x%}", 3),
            (r#"{{ "}}" + '%}\'' + x }}"#, 21),
            ("{% open", 7),
            ("{{ {'a':{'b':1}}.a + 1 }} x", 23),
            ("{% set x = [{}, (1)] %}y", 21),
            ("{{ ) }} }}", 10),
            ("{{ 'open }}", 11),
            ("{", 0),
            ("{{", 2),
            (r"{{ '\", 5),
        ] {
            assert_eq!(longest_tag(source.as_bytes()), length, "{source}");
        }
    }
}
