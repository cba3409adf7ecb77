//! Stores of prefixes and tables of costs that somebody else has written: opening and using them ends
//! well or with an error, in little time and memory, and nothing but true entries comes out.

use crate::world::*;
use serde_json::{Value, json};
use specdec_core::Token;
use specdec_rakv::{Conditions, CostTable, Tier};
use specdec_testkit::hostile::{Campaign, CampaignReport, CountingAllocator, Mutator, measured};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Tells the counts where they can be read without stopping the test.
fn told(report: &CampaignReport) {
    writeln!(std::io::stderr(), "{report}").expect("standard error is open");
    assert!(report.reasons > 3, "{report}");
}

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name)
}

fn words() -> Vec<Token> {
    text(1, 20)
}

/// A folder with two blocks and an index.
fn stored(target: &Target) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    put(&on_disk(target, folder.path()), target, 0, &words());
    folder
}

/// The only folder of a model in a store, and its files with that ending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let inner = fs::read_dir(folder).expect("a folder").flatten();
    let inner = inner.map(|entry| entry.path()).find(|path| path.is_dir());
    let all = fs::read_dir(inner.expect("the model's folder")).expect("a folder");
    let mut all: Vec<PathBuf> = all.flatten().map(|entry| entry.path()).collect();
    all.retain(|path| path.extension().is_some_and(|e| e == ending));
    all.sort();
    all
}

/// Opens the folder, reads what there is of a text (each entry is checked), and stores what is missing.
fn used(target: &Target, folder: &Path) -> Result<(), String> {
    let store = on_disk(target, folder);
    get(&store, target, 0, &words());
    put(&store, target, 0, &words());
    assert_eq!(get(&store, target, 0, &words()), words().len());
    store.flush().map_err(|error| error.to_string())?;
    // A refusal is no failure, but one is worth following as a failure is.
    match store.refusals().first() {
        Some(reason) => Err(reason.rsplit(": ").next().unwrap_or_default().to_owned()),
        None => Ok(()),
    }
}

fn file_campaign(name: &str, ending: &str, mutate: impl Fn(&mut Mutator, &[u8]) -> Vec<u8>) {
    let target = target();
    let folder = stored(&target);
    let all: Vec<(PathBuf, Vec<u8>)> = ["safetensors", "json"]
        .iter()
        .flat_map(|ending| files(folder.path(), ending))
        .map(|path| (path.clone(), fs::read(path).expect("a file")))
        .collect();
    let chosen = files(folder.path(), ending).remove(0);
    let good = fs::read(&chosen).expect("a file");
    let report = Campaign::new(name)
        .input(good)
        .corpus(corpus(name))
        .cases(150)
        .run(mutate, |bytes| {
            all.iter()
                .for_each(|(path, bytes)| fs::write(path, bytes).expect("written"));
            fs::write(&chosen, bytes).expect("written");
            used(&target, folder.path())
        });
    told(&report);
}

#[test]
fn p17_hostile_blocks() {
    file_campaign("block", "safetensors", |mutator, bytes| {
        mutator.safetensors(bytes)
    });
}

#[test]
fn p17_hostile_indices() {
    file_campaign("index", "json", |mutator, bytes| {
        signed(&mutator.json(bytes))
    });
}

/// An index with the checksum that its contents have: whoever changes one can do that too.
fn signed(text: &[u8]) -> Vec<u8> {
    let Ok(mut index) = serde_json::from_slice::<Value>(text) else {
        return text.to_vec();
    };
    let sum = || {
        let identity = &index["identity"];
        let number = |key: &str| identity[key].as_u64();
        let word = |key: &str| identity[key].as_str();
        let windows: Option<Vec<String>> = identity["windows"]
            .as_array()?
            .iter()
            .map(|w| match w {
                Value::Null => Some("-".to_owned()),
                w => Some(w.as_u64()?.to_string()),
            })
            .collect();
        let blocks: Vec<(String, u64, u32)> =
            serde_json::from_value(index["blocks"].clone()).ok()?;
        let body = format!(
            "{}|format {}|fingerprint {}|layers {}|kv heads {}|head dim {}|windows {}|numerics {}|revision {}|{:?}",
            index["format"],
            number("format")?,
            word("fingerprint")?,
            number("layers")?,
            number("kv_heads")?,
            number("head_dim")?,
            windows?.join(","),
            word("numerics")?,
            word("revision")?,
            blocks
        );
        Some(format!("{:032x}", xxh3_128(body.as_bytes())))
    };
    if let Some(sum) = sum() {
        index["checksum"] = sum.into();
    }
    index.to_string().into_bytes()
}

/// Uses counted up to the limit of their type stay there, and a clock that has run out goes on.
#[test]
fn p17_an_index_with_the_largest_numbers() {
    let target = target();
    let folder = stored(&target);
    let path = files(folder.path(), "json").remove(0);
    let mut index: Value = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
    assert_eq!(
        signed(index.to_string().as_bytes()),
        index.to_string().into_bytes(),
        "the checksum is the one of the store"
    );
    for block in index["blocks"].as_array_mut().expect("a list") {
        (block[1], block[2]) = (json!(u64::MAX), json!(u32::MAX));
    }
    fs::write(&path, signed(index.to_string().as_bytes())).expect("written");
    let store = on_disk(&target, folder.path());
    assert!(store.refusals().is_empty(), "{:?}", store.refusals());
    for _ in 0..3 {
        assert_eq!(get(&store, &target, 0, &words()), words().len());
        put(&store, &target, 0, &text(2, 30));
    }
}

/// A place in the text that no text has.
#[test]
fn p17_blocks_at_absurd_places() {
    let target = target();
    for start in ["8", "18446744073709551615", "18446744073709551616", "-1"] {
        let folder = stored(&target);
        let (places, _) = measured(64 << 20, || {
            for path in files(folder.path(), "safetensors") {
                let bytes = fs::read(&path).expect("a file");
                fs::write(&path, with_metadata(&bytes, "start", start)).expect("written");
            }
            let store = on_disk(&target, folder.path());
            get(&store, &target, 0, &words());
            store.stats().refused
        });
        assert!(places > 0, "start {start}");
    }
}

/// A safetensors file with another value in its metadata.
fn with_metadata(file: &[u8], key: &str, value: &str) -> Vec<u8> {
    let size = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let mut header: Value = serde_json::from_slice(&file[8..8 + size]).expect("JSON");
    header["__metadata__"][key] = value.into();
    let header = header.to_string();
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &file[8 + size..],
    ]
    .concat()
}

#[test]
fn p9_hostile_cost_tables() {
    let target = target();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("costs.json");
    let conditions = Conditions::here(target.spec(), &["a drafter"]);
    let table = CostTable::flat(1e-3, &[(1, 1.1e-3), (4, 1.5e-3)], &[("a drafter", 1e-5)]);
    let table = table.expect("good numbers");
    table.save(&path, &conditions).expect("written");
    let good = fs::read(&path).expect("a file");
    let report = Campaign::new("costs")
        .input(good)
        .corpus(corpus("costs"))
        .run(tampered, |bytes| {
            fs::write(&path, bytes).expect("written");
            let table = CostTable::load(&path, &conditions).map_err(|e| e.to_string())?;
            // Whatever numbers it has, asking it must be safe.
            for (rows, context) in [(1, 0), (3, 100), (1000, 1 << 40)] {
                for length in [0, 1, 8, 1000] {
                    table.verify_seconds(rows, context, length);
                    for source in 0..table.sources().count() {
                        table.draft_seconds(source, rows, context, length);
                        table.cycle(source, rows, context, length);
                        table.break_even(source, rows, context, length);
                    }
                }
                table.prefill_seconds(context, context + rows);
                table.restore_seconds(context, Tier::Disk);
            }
            Ok(())
        });
    told(&report);
}

/// A table whose measurements are changed half of the time, with the checksum that they then have.
fn tampered(mutator: &mut Mutator, bytes: &[u8]) -> Vec<u8> {
    let Ok(mut saved) = serde_json::from_slice::<Value>(bytes) else {
        return mutator.bytes(bytes);
    };
    if mutator.below(4) > 0
        && let Some(text) = saved["measurements"].as_str()
    {
        let changed = mutator.json(text.as_bytes());
        saved["measurements"] = String::from_utf8_lossy(&changed).into_owned().into();
        let body = serde_json::to_vec(&(&saved["conditions"], &saved["measurements"]));
        saved["checksum"] = format!("{:016x}", xxh3_64(&body.expect("JSON"))).into();
        return saved.to_string().into_bytes();
    }
    mutator.json(bytes)
}
