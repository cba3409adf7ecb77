//! Conversations, rendered by the model's own template and encoded so that nobody's words become special tokens.

mod conversation;
mod marks;
mod python;
mod size;

use std::{
    collections::{BTreeMap, HashSet},
    error::Error as _,
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use minijinja::{AutoEscape, Environment, State, syntax::SyntaxConfig, value::Value as Jinja};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value;

pub use self::conversation::{ChatOptions, Message};
use self::conversation::{Words, check_roles};
use self::marks::{Context, Extent, Marker, literals, private};
use crate::{
    Special, Tokenizer,
    error::{Result, TextError},
};

/// What a rendering may cost: an instruction is 1, and so are 64 bytes of text. A conversation of a
/// million tokens takes about a twentieth; a template that would go on without end, or make text without
/// end, fails.
const FUEL: u64 = 2_000_000;
/// Longest text of a conversation in bytes, some four million tokens: encoding takes a multiple of it.
const MAX_TEXT: usize = 1 << 24;
/// Stack for parsing and rendering: values and expressions may be nested as deep as fuel and source
/// allow, and are taken apart level by level. Memory that is not used is not taken.
const STACK: usize = 512 << 20;
/// Longest words of the engine or of a template in an error, in characters.
const MAX_WORDS: usize = 1000;

/// A parsed chat template.
///
/// The dialect is that of Hugging Face's chat templates: Jinja with `trim_blocks`, `lstrip_blocks` and loop
/// controls, Python's string and dict methods, `raise_exception`, `strftime_now`, a `tojson` that escapes nothing
/// for HTML, `{% generation %}` blocks (which mean nothing here), and values printed as Python prints them.
pub struct ChatTemplate {
    name: String,
    environment: Environment<'static>,
    names: BTreeMap<String, Value>,
    literals: Vec<String>,
    private: HashSet<char>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("name", &self.name)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Parses a template; the name is for errors.
    ///
    /// # Errors
    /// [`TextError::Template`] if it has something that is not supported.
    pub fn parse(source: &str, name: &str) -> Result<Self> {
        size::check(source, name)?;
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| engine_error(name, &error))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_formatter(python::format);
        environment.add_function("raise_exception", python::raise_exception);
        environment.add_filter("tojson", python::tojson);
        environment.add_filter("string", |state: &State, value: &Jinja| {
            python::str(state, value)
        });
        environment.set_fuel(Some(FUEL));
        let source = without_generation(source);
        let environment = deep(name, || {
            environment
                .add_template_owned(name.to_owned(), source.clone())
                .map_err(|error| engine_error(name, &error))?;
            Ok(environment)
        })?;
        Ok(Self {
            name: name.to_owned(),
            environment,
            names: BTreeMap::new(),
            literals: literals(&source),
            private: private(&source).collect(),
        })
    }

    /// The template of a tokenizer that these options ask for, with the tokenizer's special tokens as its variables.
    ///
    /// # Errors
    /// [`TextError::NoChatTemplate`]; [`TextError::Template`] if it cannot be parsed.
    pub fn of(tokenizer: &Tokenizer, options: &ChatOptions) -> Result<Self> {
        let name = match &options.template {
            Some(name) => name,
            None if options.tools.is_some()
                && tokenizer.chat_template_named("tool_use").is_some() =>
            {
                "tool_use"
            }
            None => "default",
        };
        let source =
            tokenizer
                .chat_template_named(name)
                .ok_or_else(|| TextError::NoChatTemplate {
                    name: options.template.clone(),
                })?;
        let mut template = Self::parse(source, name)?;
        template.names.clone_from(tokenizer.names());
        Ok(template)
    }

    /// The template with one more constant, such as `bos_token`.
    #[must_use]
    pub fn with_token(mut self, variable: impl Into<String>, text: impl Into<String>) -> Self {
        self.names
            .insert(variable.into(), Value::String(text.into()));
        self
    }

    /// The template's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text of a conversation. Encoding it yourself lets messages spell special tokens;
    /// [`encode`](Self::encode) does not.
    ///
    /// # Errors
    /// [`TextError::TemplateRaised`] if the template refuses; [`TextError::Template`] if it fails;
    /// [`TextError::Role`].
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        check_roles(messages, |_| false)?;
        self.run(
            &Words::of(messages, options, None),
            options,
            moment(options),
        )
    }

    /// The token ids of a conversation: those of its [rendered](Self::render) text with special tokens
    /// recognised, except that no word of the messages, tools or documents is part of one. The begin token
    /// comes first, once, where the tokenizer [wants one](Tokenizer::add_bos) and the template wrote none.
    ///
    /// To know which characters are the template's, the conversation is rendered again with the words'
    /// characters replaced by private ones. If a template looks into the words, so that this changes the
    /// text, fewer are replaced: not the strings that the template has in its own source, then only punctuation.
    ///
    /// # Errors
    /// As [`render`](Self::render); [`TextError::UnsafeContent`] if the text changes even so, and the words may
    /// spell special tokens; [`TextError::Encode`] if the tokenizer cannot express the text.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<Vec<u32>> {
        let context = Context::new(
            tokenizer.guarded_tokens(),
            tokenizer.normalizing_guards(),
            &self.literals,
        );
        check_roles(messages, |role| context.spells(role))?;
        let now = moment(options);
        let words = Words::of(messages, options, None);
        let text = self.run(&words, options, now)?;
        let mut taken = self.private.clone();
        taken.extend(private(&text));
        let spelled = words.any(&mut |word| {
            taken.extend(private(word));
            context.spells(word)
        });
        let unsafe_content = || TextError::UnsafeContent {
            template: self.name.clone(),
        };
        for extent in Extent::ORDER {
            let mut marker = Marker::new(&context, extent, &taken);
            let marked = Words::of(messages, options, Some(&mut marker));
            if marker.exhausted() {
                return Err(unsafe_content());
            }
            // A template that chokes on marks may do without some of them.
            let Ok(rendered) = self.run(&marked, options, now) else {
                continue;
            };
            let (unmarked, protected) = marker.undo(&rendered);
            if unmarked == text {
                return Ok(tokenizer.begun(tokenizer.encode_protected(&text, &protected)?));
            }
            if extent == Extent::Punctuation && !spelled {
                // The words are harmless as they are if they bring no special token into the text.
                let special = |ids: &[u32]| -> Vec<u32> {
                    ids.iter()
                        .copied()
                        .filter(|&id| tokenizer.is_special(id))
                        .collect()
                };
                let plain = tokenizer.encode(&text, Special::Parse)?;
                if special(&plain) == special(&tokenizer.encode_protected(&unmarked, &protected)?) {
                    return Ok(tokenizer.begun(plain));
                }
            }
        }
        Err(unsafe_content())
    }

    fn run(&self, words: &Words, options: &ChatOptions, now: i64) -> Result<String> {
        let mut variables: BTreeMap<&str, Jinja> = self
            .names
            .iter()
            .map(|(name, value)| (name.as_str(), jinja(value)))
            .collect();
        variables.insert("messages", jinja(&words.messages));
        variables.insert("tools", jinja(&words.tools));
        variables.insert("documents", jinja(&words.documents));
        variables.insert(
            "add_generation_prompt",
            options.add_generation_prompt.into(),
        );
        let clock = Jinja::from_function(move |format: &str| python::strftime(now, format));
        variables.insert("strftime_now", clock);
        variables.extend(
            options
                .variables
                .iter()
                .map(|(name, value)| (name.as_str(), jinja(value))),
        );
        deep(&self.name, || {
            let rendered = self
                .environment
                .get_template(&self.name)
                .and_then(|template| template.render(Jinja::from_pairs(variables)));
            let text = rendered.map_err(|error| engine_error(&self.name, &error))?;
            if text.len() > MAX_TEXT {
                let reason = format!("it makes {} bytes, more than {MAX_TEXT}", text.len());
                return Err(template_error(&self.name, reason));
            }
            Ok(text)
        })
    }
}

/// Runs the engine with a stack on which nesting cannot overflow. A panic of it is an error.
fn deep<T: Send>(template: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".into())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| {
                template_error(template, format!("there is no thread for it: {error}"))
            })?;
        thread
            .join()
            .unwrap_or_else(|_| Err(template_error(template, "the engine panicked".to_owned())))
    })
}

fn template_error(template: &str, reason: String) -> TextError {
    TextError::Template {
        template: template.to_owned(),
        line: 0,
        reason,
    }
}

/// The token ids of a conversation, by the template that the tokenizer brings; see [`ChatTemplate::encode`].
///
/// # Errors
/// As [`ChatTemplate::of`] and [`ChatTemplate::encode`].
pub fn encode_chat(
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &ChatOptions,
) -> Result<Vec<u32>> {
    ChatTemplate::of(tokenizer, options)?.encode(tokenizer, messages, options)
}

/// The value as the engine has it.
fn jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(value) => Jinja::from(*value),
        Value::Number(number) => number
            .as_i64()
            .map(Jinja::from)
            .or_else(|| number.as_u64().map(Jinja::from))
            .or_else(|| number.as_f64().map(Jinja::from))
            .unwrap_or_else(|| Jinja::from(number.to_string())),
        Value::String(text) => Jinja::from(text.as_str()),
        Value::Array(list) => list.iter().map(jinja).collect(),
        Value::Object(map) => {
            Jinja::from_pairs(map.iter().map(|(key, value)| (key.as_str(), jinja(value))))
        }
    }
}

fn moment(options: &ChatOptions) -> i64 {
    options.now.unwrap_or_else(|| {
        let passed = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(passed.as_secs()).unwrap_or(i64::MAX)
    })
}

fn engine_error(template: &str, error: &minijinja::Error) -> TextError {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(raised) = error.downcast_ref::<python::Raised>() {
            return TextError::TemplateRaised {
                template: template.to_owned(),
                message: shortened(&raised.0),
            };
        }
        cause = error.source();
    }
    let detail = error
        .detail()
        .map_or_else(String::new, |detail| format!(": {detail}"));
    TextError::Template {
        template: template.to_owned(),
        line: error.line().unwrap_or(0),
        reason: shortened(&format!("{}{detail}", error.kind())),
    }
}

fn shortened(words: &str) -> String {
    match words.char_indices().nth(MAX_WORDS) {
        Some((at, _)) => format!("{}…", &words[..at]),
        None => words.to_owned(),
    }
}

/// The template with `{% generation %}` blocks, which mark the assistant's words for training, made
/// into blocks that do nothing.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(close) = rest[open + 2..].find("%}").map(|close| open + 2 + close) else {
            break;
        };
        let inside = &rest[open + 2..close];
        let word = inside.trim_matches(|character: char| {
            character.is_whitespace() || matches!(character, '-' | '+')
        });
        out.push_str(&rest[..open + 2]);
        match word {
            "generation" => out.push_str(&inside.replace(word, "if true")),
            "endgeneration" => out.push_str(&inside.replace(word, "endif")),
            _ => out.push_str(inside),
        }
        rest = &rest[close..];
    }
    out.push_str(rest);
    out
}
