//! P17, P9: files that are torn, changed, renamed or foreign.

use crate::world::*;
use specdec_core::Token;
use specdec_rakv::{DiskOptions, PrefixStore, StoreOptions, Write};
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a store's folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.push(path);
        }
    }
    all.sort();
    all
}

fn texts() -> [Vec<Token>; 2] {
    let one = text(1, 20);
    let two = [&one[..11], &[3, 4, 5, 6]].concat();
    [one, two]
}

/// Opens the folder after something happened to it: nothing but true entries comes out, and what is
/// missing can be stored again.
fn survives(target: &Target, folder: &Path, what: &str) {
    let store = on_disk(target, folder);
    for text in texts() {
        // Checks every entry of what is found.
        get(&store, target, 0, &text);
        put(&store, target, 0, &text);
        assert_eq!(get(&store, target, 0, &text), text.len(), "{what}");
    }
    drop(store);
    let again = on_disk(target, folder);
    for text in texts() {
        assert_eq!(
            get(&again, target, 0, &text),
            text.len(),
            "{what}, opened again"
        );
    }
}

fn copy_of(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for file in files(folder) {
        let to = copy.path().join(file.strip_prefix(folder).expect("inside"));
        fs::create_dir_all(to.parent().expect("it has one")).expect("a folder");
        fs::copy(&file, &to).expect("a copy");
    }
    copy
}

fn stored(target: &Target) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let store = on_disk(target, folder.path());
    for text in texts() {
        put(&store, target, 0, &text);
    }
    assert_eq!(files(folder.path()).len(), 5, "four blocks and an index");
    folder
}

#[test]
fn p17_files_cut_anywhere() {
    let target = target();
    let folder = stored(&target);
    for file in files(folder.path()) {
        let bytes = fs::read(&file).expect("a file");
        for cut in (0..bytes.len())
            .step_by(bytes.len() / 12 + 1)
            .chain([bytes.len() - 1])
        {
            let copy = copy_of(folder.path());
            let to = copy
                .path()
                .join(file.strip_prefix(folder.path()).expect("inside"));
            fs::write(&to, &bytes[..cut]).expect("written");
            let store = on_disk(&target, copy.path());
            assert!(store.stats().refused > 0, "{} cut at {cut}", file.display());
            drop(store);
            survives(
                &target,
                copy.path(),
                &format!("{} cut at {cut}", file.display()),
            );
        }
    }
}

#[test]
fn p17_bits_flipped_anywhere() {
    let target = target();
    let folder = stored(&target);
    for file in files(folder.path()) {
        let bytes = fs::read(&file).expect("a file");
        for at in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
            let copy = copy_of(folder.path());
            let to = copy
                .path()
                .join(file.strip_prefix(folder.path()).expect("inside"));
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&to, &flipped).expect("written");
            survives(
                &target,
                copy.path(),
                &format!("{} bit at {at}", file.display()),
            );
        }
    }
}

#[test]
fn p17_a_missing_parent_a_missing_index_and_strange_files() {
    let target = target();
    let folder = stored(&target);
    for gone in files(folder.path()) {
        let copy = copy_of(folder.path());
        let to = copy
            .path()
            .join(gone.strip_prefix(folder.path()).expect("inside"));
        fs::remove_file(&to).expect("removed");
        survives(&target, copy.path(), &format!("without {}", gone.display()));
    }
    let inside = files(folder.path())[0]
        .parent()
        .expect("a folder")
        .to_path_buf();
    fs::write(inside.join("0123.safetensors"), b"nothing").expect("written");
    fs::write(inside.join(".unfinished-abc"), b"half").expect("written");
    fs::write(inside.join("notes.txt"), b"mine").expect("written");
    survives(&target, folder.path(), "strange files");
    assert!(inside.join("notes.txt").exists());
}

/// P9: a file under the name of other tokens (as if their digests were equal) is not taken for
/// theirs.
#[test]
fn p9_equal_names_for_other_tokens() {
    let target = target();
    let folder = stored(&target);
    let all = files(folder.path());
    let (one, two) = (&all[0], &all[1]);
    let (a, b) = (
        fs::read(one).expect("a file"),
        fs::read(two).expect("a file"),
    );
    fs::write(one, b).expect("written");
    fs::write(two, a).expect("written");
    let store = on_disk(&target, folder.path());
    assert!(store.stats().refused >= 2, "{:?}", store.refusals());
    assert!(
        store.refusals().iter().any(|r| r.contains("name")),
        "{:?}",
        store.refusals()
    );
    drop(store);
    survives(&target, folder.path(), "swapped");
    // Swapped while the store is open: found out when it is read.
    let folder = stored(&target);
    let store = on_disk(&target, folder.path());
    let all = files(folder.path());
    let bytes = fs::read(&all[0]).expect("a file");
    fs::write(&all[1], bytes).expect("written");
    for text in texts() {
        get(&store, &target, 0, &text);
        put(&store, &target, 0, &text);
        assert_eq!(get(&store, &target, 0, &text), text.len());
    }
    assert!(store.stats().refused > 0);
}

/// A store goes on where another process stopped; its files stay within their budget.
#[test]
fn files_outlive_the_process_within_their_budget() {
    let target = target();
    let folder = stored(&target);
    let size: u64 = files(folder.path())
        .iter()
        .filter(|f| f.extension().is_some_and(|e| e == "safetensors"))
        .map(|f| fs::metadata(f).expect("a file").len())
        .sum();
    let store = on_disk(&target, folder.path());
    let stats = store.stats();
    assert_eq!(
        (stats.disk_bytes as u64, stats.memory_bytes, stats.blocks),
        (size, 0, 4)
    );
    let mut decoder = decoder(
        &target,
        &store_with(&target, folder.path(), Write::OnFlush, 1 << 30),
    );
    // Made-up entries are no good for a real model: another text.
    assert_eq!(warm(&mut decoder, &text(9, 30), 5), 0);

    let budget = (size / 2) as usize;
    let small = store_with(&target, folder.path(), Write::OnStore, budget);
    for seed in 20..26 {
        put(&small, &target, 0, &text(seed, 24));
        let stats = small.stats();
        assert!(stats.disk_bytes <= budget, "{stats:?}");
    }
    let left: u64 = files(folder.path())
        .iter()
        .filter(|f| f.extension().is_some_and(|e| e == "safetensors"))
        .map(|f| fs::metadata(f).expect("a file").len())
        .sum();
    assert_eq!(left as usize, small.stats().disk_bytes);
}

fn store_with(target: &Target, folder: &Path, write: Write, budget: usize) -> PrefixStore {
    let options = StoreOptions {
        block: 8,
        disk: Some(DiskOptions {
            write,
            budget,
            ..DiskOptions::new(folder)
        }),
        ..StoreOptions::default()
    };
    PrefixStore::open(identity(target), options).expect("a folder")
}

#[test]
fn flushing_writes_what_memory_holds() {
    let target = target();
    let folder = tempfile::tempdir().expect("a folder");
    let store = store_with(&target, folder.path(), Write::OnFlush, 1 << 30);
    let [one, two] = texts();
    put(&store, &target, 0, &one);
    put(&store, &target, 3, &two);
    assert_eq!(store.stats().disk_bytes, 0);
    store.flush().expect("written");
    let again = on_disk(&target, folder.path());
    assert_eq!(get(&again, &target, 0, &one), one.len());
    assert_eq!(get(&again, &target, 3, &two), two.len());
    assert_eq!(get(&again, &target, 3, &one), 11);
    assert_eq!(again.stats().refused, 0);
}

/// What memory gives up is read again from its file.
#[test]
fn memory_may_be_smaller_than_the_disk() {
    let target = target();
    let folder = tempfile::tempdir().expect("a folder");
    let options = StoreOptions {
        block: 8,
        memory: 3 * 8 * 2 * 7 * target.spec().head_dim * 4,
        disk: Some(DiskOptions {
            write: Write::OnStore,
            ..DiskOptions::new(folder.path())
        }),
        ..StoreOptions::default()
    };
    let store = PrefixStore::open(identity(&target), options).expect("good options");
    for seed in 0..6 {
        put(&store, &target, 0, &text(seed, 24));
    }
    for seed in 0..6 {
        assert_eq!(get(&store, &target, 0, &text(seed, 24)), 24, "text {seed}");
    }
    let stats = store.stats();
    assert!(
        stats.read > 0 && stats.evicted > 0 && stats.refused == 0,
        "{stats:?}"
    );
}
