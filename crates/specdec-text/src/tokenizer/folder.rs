//! tokenizer.json and the files that lie beside it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::{Entry, Settings, Tokenizer, guarded, table::Spelling};
use crate::error::{Result, TextError};

/// The parts of tokenizer.json that decide whether the rest can be read.
#[derive(Deserialize)]
struct Probe {
    model: ModelProbe,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    added_tokens: Vec<AddedProbe>,
}

#[derive(Deserialize)]
struct AddedProbe {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct ModelProbe {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// The parsed files beside tokenizer.json; null where there is none.
#[derive(Default)]
struct Neighbours {
    tokenizer_config: Value,
    generation_config: Value,
    config: Value,
    templates: BTreeMap<String, String>,
}

impl Tokenizer {
    /// Reads a tokenizer.json alone: it knows no chat template and no other end tokens than the
    /// [well-known ones](Self::eos_ids).
    ///
    /// # Errors
    /// [`TextError::Read`]; otherwise as [`from_bytes`](Self::from_bytes).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = read_file(path).map_err(|source| TextError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::from_bytes(&bytes)
    }

    /// Reads the content of a tokenizer.json.
    ///
    /// # Errors
    /// [`TextError::Malformed`] if it is none; [`TextError::Unsupported`] if its model is not BPE or Unigram,
    /// or its decoder cannot be run token by token.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        read(bytes, &Neighbours::default())
    }

    /// Reads a model's folder: tokenizer.json and, where they exist, tokenizer_config.json, chat_template.jinja, the folder
    /// additional_chat_templates, generation_config.json and config.json.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file), for any of these; a folder with a `tokenizer.model` only is
    /// [`TextError::Unsupported`].
    pub fn from_folder(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let tokenizer = path.join("tokenizer.json");
        let Some(bytes) = read_optional(&tokenizer)? else {
            let lone = ["tokenizer.model", "vocab.txt", "vocab.json"]
                .iter()
                .find(|name| path.join(name).exists());
            return Err(lone.map_or_else(
                || TextError::Read {
                    path: tokenizer,
                    source: io::ErrorKind::NotFound.into(),
                },
                |name| TextError::Unsupported {
                    part: "tokenizer file",
                    kind: (*name).to_owned(),
                },
            ));
        };
        let tokenizer_config = read_json(&path.join("tokenizer_config.json"))?;
        let mut templates = named_templates(&tokenizer_config["chat_template"]);
        if let Some(template) = read_optional(&path.join("chat_template.jinja"))? {
            templates.insert("default".to_owned(), utf8("chat_template.jinja", template)?);
        }
        if let Ok(folder) = fs::read_dir(path.join("additional_chat_templates")) {
            for file in folder.flatten().map(|file| file.path()) {
                let name = file
                    .file_stem()
                    .and_then(|name| name.to_str())
                    .map(str::to_owned);
                if let (Some(name), Some("jinja")) =
                    (name, file.extension().and_then(|e| e.to_str()))
                    && let Some(template) = read_optional(&file)?
                {
                    let template = utf8(&name, template)?;
                    templates.insert(name, template);
                }
            }
        }
        let neighbours = Neighbours {
            tokenizer_config,
            generation_config: read_json(&path.join("generation_config.json"))?,
            config: read_json(&path.join("config.json"))?,
            templates,
        };
        read(&bytes, &neighbours)
    }
}

/// Longest file that is read; the largest tokenizers have a tenth of it.
const MAX_FILE: u64 = 1 << 29;

/// Reads a file. Devices and pipes, which may never end, are refused.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let about = fs::metadata(path)?;
    let refuse = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    if !about.is_file() {
        return refuse("it is no regular file");
    }
    if about.len() > MAX_FILE {
        return refuse("it is too large");
    }
    fs::read(path)
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match read_file(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn read_json(path: &Path) -> Result<Value> {
    match read_optional(path)? {
        None => Ok(Value::Null),
        Some(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| TextError::malformed(path.display().to_string(), error)),
    }
}

fn utf8(what: &str, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| TextError::malformed(what, error))
}

/// One template, or a list of named ones.
fn named_templates(value: &Value) -> BTreeMap<String, String> {
    match value {
        Value::String(template) => BTreeMap::from([("default".to_owned(), template.clone())]),
        Value::Array(list) => list
            .iter()
            .filter_map(|entry| {
                let name = entry["name"].as_str()?;
                Some((name.to_owned(), entry["template"].as_str()?.to_owned()))
            })
            .collect(),
        _ => BTreeMap::new(),
    }
}

/// A token in a config file: its text, or an object with the text inside.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// One id or a list of ids.
fn ids(value: &Value) -> impl Iterator<Item = u32> + '_ {
    let one = value.as_u64();
    let many = value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64);
    one.into_iter()
        .chain(many)
        .filter_map(|id| u32::try_from(id).ok())
}

/// The special tokens by the names that templates use, and the templates' other constants.
fn names(config: &Value) -> BTreeMap<String, Value> {
    const TOKENS: [&str; 7] = [
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
    ];
    let mut names: BTreeMap<String, Value> = TOKENS
        .iter()
        .filter_map(|&name| Some((name.to_owned(), Value::from(token_text(&config[name])?))))
        .collect();
    if let Some(list) = config["additional_special_tokens"].as_array() {
        let list: Vec<Value> = list
            .iter()
            .filter_map(token_text)
            .map(Value::from)
            .collect();
        names.insert("additional_special_tokens".to_owned(), Value::Array(list));
    }
    names
}

fn read(bytes: &[u8], neighbours: &Neighbours) -> Result<Tokenizer> {
    guarded(
        || read_unguarded(bytes, neighbours),
        |reason| TextError::malformed("tokenizer.json", reason),
    )
}

fn read_unguarded(bytes: &[u8], neighbours: &Neighbours) -> Result<Tokenizer> {
    let malformed =
        |error: &dyn ToString| TextError::malformed("tokenizer.json", error.to_string());
    let probe: Probe = serde_json::from_slice(bytes).map_err(|error| malformed(&error))?;
    if let Some(kind) = probe.model.kind
        && !matches!(kind.as_str(), "BPE" | "Unigram")
    {
        return Err(TextError::Unsupported {
            part: "tokenizer kind",
            kind,
        });
    }
    let spelling = Spelling::read(&probe.decoder, &probe.pre_tokenizer)?;
    let mut engine = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| malformed(&error))?;
    // The engine numbers added tokens by itself and only warns where the file says otherwise.
    for token in &probe.added_tokens {
        let given = engine.token_to_id(&token.content);
        if given.is_some_and(|given| given != token.id) {
            let AddedProbe { id, content } = token;
            return Err(malformed(&format!(
                "added token {content:?} is {id} in the list, but another id by its place"
            )));
        }
    }
    engine
        .with_truncation(None)
        .map_err(|error| malformed(&error))?
        .with_padding(None);

    let config = &neighbours.tokenizer_config;
    let mut ends = BTreeSet::new();
    for source in [
        &neighbours.generation_config,
        &neighbours.config,
        &neighbours.config["text_config"],
    ] {
        ends.extend(ids(&source["eos_token_id"]));
    }
    // The config may name begin and end tokens that tokenizer.json has among its words.
    let named = |name: &str| {
        let text = token_text(&config[name])?;
        Some((engine.token_to_id(text)?, text.to_owned()))
    };
    let (bos, eos) = (named("bos_token"), named("eos_token"));
    ends.extend(eos.iter().map(|(id, _)| *id));
    let added = engine.get_added_tokens_decoder();
    let missing: Vec<AddedToken> = [&bos, &eos]
        .into_iter()
        .flatten()
        .filter(|(id, text)| !added.contains_key(id) && text.chars().nth(1).is_some())
        .map(|(_, text)| AddedToken::from(text.clone(), true))
        .collect();
    engine
        .add_special_tokens(missing)
        .map_err(|error| malformed(&error))?;

    // What the post-processor puts around a text is all there is around an empty one.
    let around = engine
        .encode("", true)
        .map_err(|error| malformed(&error))?
        .get_ids()
        .to_vec();
    let declared = if config.is_null() {
        let fallback = [&neighbours.generation_config, &neighbours.config];
        let configured = fallback
            .into_iter()
            .find_map(|source| ids(&source["bos_token_id"]).next());
        configured.or_else(|| around.first().copied().filter(|id| !ends.contains(id)))
    } else {
        bos.map(|(id, _)| id)
    };
    let begins = declared.is_some() && around.first().copied() == declared;
    let finishes = around.last().is_some_and(|id| Some(*id) != declared);
    let settings = Settings {
        bos: declared,
        ends,
        add_bos: config["add_bos_token"].as_bool().unwrap_or(begins),
        add_eos: config["add_eos_token"].as_bool().unwrap_or(finishes),
        names: names(config),
        templates: neighbours.templates.clone(),
    };
    let entries = entries(&engine, &spelling)?;
    Tokenizer::assemble(engine, &entries, spelling.leading_spaces, settings)
}

/// Ids from here on are no tokenizer's; a table up to one of them would fill the memory.
const MAX_ID: u32 = 1 << 22;

/// The vocabulary by id.
fn entries(engine: &tokenizers::Tokenizer, spelling: &Spelling) -> Result<Vec<Option<Entry>>> {
    let vocab = engine.get_vocab(true);
    if let Some((text, id)) = vocab.iter().find(|(_, id)| **id >= MAX_ID) {
        let reason = format!("token {text:?} has the id {id}, {MAX_ID} or above");
        return Err(TextError::malformed("tokenizer.json", reason));
    }
    let mut entries: Vec<Option<Entry>> = Vec::new();
    let mut put = |id: u32, entry: Entry| {
        let id = id as usize;
        if entries.len() <= id {
            entries.resize(id + 1, None);
        }
        entries[id] = Some(entry);
    };
    for (text, id) in engine.get_vocab(false) {
        put(
            id,
            Entry {
                bytes: spelling.bytes(&text),
                special: false,
            },
        );
    }
    for (id, token) in engine.get_added_tokens_decoder() {
        let bytes = spelling.added_bytes(&token.content, token.special);
        put(
            id,
            Entry {
                bytes,
                special: token.special,
            },
        );
    }
    Ok(entries)
}

/// The template constants of a GGUF file, by the ids that it names.
pub(super) fn names_by_id(
    tokens: &[String],
    ids: &[(&str, Option<u32>)],
) -> BTreeMap<String, Value> {
    let named = ids.iter().filter_map(|&(name, id)| {
        let text = tokens.get(usize::try_from(id?).ok()?)?;
        Some((name.to_owned(), Value::from(text.as_str())))
    });
    named.collect::<Map<String, Value>>().into_iter().collect()
}
