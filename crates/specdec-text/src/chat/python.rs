//! The ways in which templates written for Python differ from what the engine does by itself.

use minijinja::{
    Error, ErrorKind, Output, State,
    value::{Kwargs, Value, ValueKind},
};

/// A template's own refusal, inside the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// `raise_exception(message)`.
pub(super) fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// How `{{ value }}` prints.
pub(super) fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    out.write_str(&str(state, value)?).map_err(Error::from)
}

/// Values that lie deeper in others are not printed.
const MAX_DEPTH: usize = 128;

/// Pays for a value that is printed; one too deep in others is refused.
fn pay(state: &State, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        let reason = format!("values are nested deeper than {MAX_DEPTH}");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    let length = value.as_str().map_or(0, str::len);
    state.consume_fuel(1 + length as u64 / 64)
}

/// Python's `str`.
pub(super) fn str(state: &State, value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.to_string()),
        _ => repr(state, value, 0),
    }
}

/// Python's `repr`.
fn repr(state: &State, value: &Value, depth: usize) -> Result<String, Error> {
    pay(state, value, depth)?;
    let inner = |value: &Value| repr(state, value, depth + 1);
    Ok(match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number => number(value),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Result<Vec<String>, Error> =
                value.try_iter()?.map(|item| inner(&item)).collect();
            format!("[{}]", items?.join(", "))
        }
        ValueKind::Map => {
            let items: Result<Vec<String>, Error> = value
                .try_iter()?
                .map(|key| {
                    Ok(format!(
                        "{}: {}",
                        inner(&key)?,
                        inner(&value.get_item(&key)?)?
                    ))
                })
                .collect();
            format!("{{{}}}", items?.join(", "))
        }
        _ => value.to_string(),
    })
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', quote]),
            '\0'..='\x1F' | '\x7F' => out.push_str(&format!("\\x{:02x}", u32::from(character))),
            _ => out.push(character),
        }
    }
    out.push(quote);
    out
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let Ok(float) = f64::try_from(value.clone()) else {
        return value.to_string();
    };
    let text = format!("{float:?}");
    // Python signs its exponents and gives them two digits.
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent
                .strip_prefix('-')
                .map_or(('+', exponent), |rest| ('-', rest));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text.replace("NaN", "nan"),
    }
}

/// The `tojson` filter of chat templates: Python's `json.dumps` without `ensure_ascii`, with nothing
/// escaped for HTML.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    ensure_ascii: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let ascii = match options.get::<Option<bool>>("ensure_ascii")? {
        Some(ascii) => ascii,
        None => ensure_ascii.unwrap_or(false),
    };
    let indent = match options.get::<Option<Value>>("indent")? {
        Some(indent) if !indent.is_none() => Some(match indent.as_str() {
            Some(text) => short(text)?,
            None => " ".repeat(usize::try_from(indent)?.min(64)),
        }),
        _ => None,
    };
    let (mut comma, mut colon) = (
        if indent.is_some() { "," } else { ", " }.to_owned(),
        ": ".to_owned(),
    );
    if let Some(separators) = options.get::<Option<Value>>("separators")?
        && !separators.is_none()
    {
        comma = short(&str(state, &separators.get_item_by_index(0)?)?)?;
        colon = short(&str(state, &separators.get_item_by_index(1)?)?)?;
    }
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut writer = Json {
        state,
        out: String::new(),
        comma,
        colon,
        indent,
        ascii,
        sort,
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// What is repeated between values must be short.
fn short(text: &str) -> Result<String, Error> {
    if text.len() <= 64 {
        return Ok(text.to_owned());
    }
    let reason = "tojson: indent and separators have 64 bytes at the most";
    Err(Error::new(ErrorKind::InvalidOperation, reason))
}

struct Json<'s, 't, 'e> {
    state: &'s State<'t, 'e>,
    out: String,
    comma: String,
    colon: String,
    indent: Option<String>,
    ascii: bool,
    sort: bool,
}

impl Json<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        pay(self.state, value, depth)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let number = number(value)
                    .replace("nan", "NaN")
                    .replace("inf", "Infinity");
                self.out.push_str(&number);
            }
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = self.paid(value)?;
                self.bracket('[', ']', depth, &items, |json, item| {
                    json.value(item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys = self.paid(value)?;
                if self.sort {
                    keys.sort();
                }
                self.bracket('{', '}', depth, &keys, |json, key| {
                    json.string(&key.to_string());
                    json.out.push_str(&json.colon.clone());
                    json.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            kind => {
                let reason = format!("{kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        }
        Ok(())
    }

    /// The items of a list that may be longer in print than in memory.
    fn paid(&self, value: &Value) -> Result<Vec<Value>, Error> {
        let items = value.try_iter()?;
        let paid = items.map(|item| self.state.consume_fuel(1).map(|()| item));
        paid.collect()
    }

    fn bracket(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        items: &[Value],
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.comma.clone());
            }
            self.new_line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\x08' => self.out.push_str("\\b"),
                '\x0C' => self.out.push_str("\\f"),
                '\0'..='\x1F' => self
                    .out
                    .push_str(&format!("\\u{:04x}", u32::from(character))),
                _ if self.ascii && !character.is_ascii() => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// Python's `strftime` of a moment in UTC, given in seconds since 1970.
pub(super) fn strftime(seconds: i64, format: &str) -> Result<String, Error> {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day, day_of_year) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let month_name = MONTHS[(month - 1) as usize];
    let day_name = DAYS[(days + 4).rem_euclid(7) as usize];
    let twelve = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let (bare, code) = match characters.next() {
            Some('-') => (true, characters.next()),
            code => (false, code),
        };
        let two = |number: i64| {
            if bare {
                number.to_string()
            } else {
                format!("{number:02}")
            }
        };
        let text = match code {
            Some('Y') => year.to_string(),
            Some('y') => two(year.rem_euclid(100)),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('j') if bare => day_of_year.to_string(),
            Some('j') => format!("{day_of_year:03}"),
            Some('H') => two(hour),
            Some('I') => two(twelve),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('D') => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            code => {
                let code = code.map_or_else(|| "an end".to_owned(), |code| format!("{code:?}"));
                let reason = format!("strftime: % followed by {code} is not supported");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        };
        out.push_str(&text);
    }
    Ok(out)
}

/// The date of a day counted from 1970-01-01, in the proleptic Gregorian calendar: year, month, day, day of
/// the year. Four hundred years have 146097 days; they are counted from a 1 March, so that a leap day comes last.
fn civil(days: i64) -> (i64, i64, i64, i64) {
    let from_march = days + 719_468;
    let (era, day_of_era) = (
        from_march.div_euclid(146_097),
        from_march.rem_euclid(146_097),
    );
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_march_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months = (5 * day_of_march_year + 2) / 153;
    let day = day_of_march_year - (153 * months + 2) / 5 + 1;
    let month = if months < 10 { months + 3 } else { months - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let leap = i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
    // January begins 306 days after 1 March.
    let day_of_year = if month <= 2 {
        day_of_march_year - 305
    } else {
        day_of_march_year + 60 + leap
    };
    (year, month, day, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds, format: &str| strftime(seconds, format).unwrap();
        assert_eq!(
            at(0, "%Y-%m-%d %H:%M:%S %A %j"),
            "1970-01-01 00:00:00 Thursday 001"
        );
        assert_eq!(at(951_782_400, "%F %a %j"), "2000-02-29 Tue 060");
        assert_eq!(at(951_868_800, "%d %b %Y %j"), "01 Mar 2000 061");
        assert_eq!(
            at(1_735_689_599, "%-d %B %Y %I:%M %p %j"),
            "31 December 2024 11:59 PM 366"
        );
        assert_eq!(at(-1, "%F %T"), "1969-12-31 23:59:59");
        assert!(strftime(0, "%Q").is_err());
    }
}
