//! Folders with things in them that are no blocks, and things in the way of blocks.

use crate::world::*;
use specdec_rakv::{DiskOptions, PrefixStore, RakvError, StoreOptions};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The folder of the target's store below a folder.
fn inside(target: &Target, folder: &Path) -> PathBuf {
    folder.join(format!("{:032x}", identity(target).digest()))
}

/// Opens a pipe for nobody: whoever opens it to read waits.
#[cfg(unix)]
fn pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo").success());
}

/// What `run` makes, if it is done within ten seconds.
#[cfg(unix)]
fn in_time<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(run()));
    wait.recv_timeout(Duration::from_secs(10))
        .expect("it waits for a pipe")
}

/// Pipes under the names of blocks and of the index are refused, and not waited for.
#[test]
#[cfg(unix)]
fn pipes_are_not_waited_for() {
    let target = target();
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = text(1, 20);
    put(&on_disk(&target, folder.path()), &target, 0, &tokens);
    let inside = inside(&target, folder.path());
    pipe(&inside.join("0123.safetensors"));
    fs::remove_file(inside.join("index.json")).expect("removed");
    pipe(&inside.join("index.json"));
    let (at, of) = (folder.path().to_path_buf(), target.clone());
    let store = in_time(move || on_disk(&of, &at));
    let refusals = store.refusals();
    assert_eq!(refusals.len(), 2, "{refusals:?}");
    assert!(
        refusals.iter().all(|r| r.contains("no regular file")),
        "{refusals:?}"
    );
    // One in place of a block, while the store is open.
    let block = fs::read_dir(&inside)
        .expect("files")
        .map(|file| file.expect("a file").path())
        .find(|file| file.is_file() && file.extension().is_some_and(|e| e == "safetensors"))
        .expect("a block");
    fs::remove_file(&block).expect("removed");
    pipe(&block);
    let got = in_time(move || get(&store, &target, 0, &tokens));
    assert!(got < 20, "{got}");
}

/// What killed processes left behind goes away; what another process may be writing stays.
#[test]
fn unfinished_files_go_after_an_hour() {
    let target = target();
    let folder = tempfile::tempdir().expect("a folder");
    put(&on_disk(&target, folder.path()), &target, 0, &text(1, 20));
    let inside = inside(&target, folder.path());
    let aged = |name: &str, minutes: u64| {
        let path = inside.join(name);
        fs::write(&path, b"half").expect("written");
        let then = SystemTime::now() - Duration::from_secs(60 * minutes);
        let file = File::options().write(true).open(&path).expect("a file");
        file.set_modified(then).expect("set");
        path
    };
    let (old, young) = (aged(".unfinished-old", 61), aged(".unfinished-young", 58));
    let mine = aged("notes.txt", 600);
    let own = fs::read_dir(&inside).expect("files").count();
    let store = on_disk(&target, folder.path());
    assert!(!old.exists() && young.exists() && mine.exists());
    assert_eq!(fs::read_dir(&inside).expect("files").count(), own - 1);
    assert_eq!(get(&store, &target, 0, &text(1, 20)), 20);
}

/// P17: one file that cannot be written costs no other its place.
#[test]
fn a_block_that_cannot_be_written_keeps_no_other_from_it() {
    let target = target();
    let folder = tempfile::tempdir().expect("a folder");
    let inside = inside(&target, folder.path());
    let open = || {
        let options = StoreOptions {
            block: 8,
            disk: Some(DiskOptions::new(folder.path())),
            ..StoreOptions::default()
        };
        PrefixStore::open(identity(&target), options).expect("a folder")
    };
    // Its first block's name, found by writing it once.
    put(&on_disk(&target, folder.path()), &target, 0, &text(1, 8));
    let files = fs::read_dir(&inside).expect("files");
    let block = files
        .map(|file| file.expect("a file").path())
        .find(|file| file.extension().is_some_and(|e| e == "safetensors"))
        .expect("a block");
    fs::remove_dir_all(&inside).expect("removed");

    let store = open();
    let texts: Vec<_> = (1..4).map(|seed| text(seed, 20)).collect();
    for text in &texts {
        put(&store, &target, 0, text);
    }
    fs::create_dir_all(block.join("in the way")).expect("a folder");
    let error = store.flush().expect_err("a folder is in the way");
    assert!(
        matches!(&error, RakvError::Io { path, .. } if *path == block),
        "{error}"
    );
    assert!(inside.join("index.json").is_file());
    let again = open();
    assert_eq!(get(&again, &target, 0, &texts[0]), 0);
    for text in &texts[1..] {
        assert_eq!(get(&again, &target, 0, text), 20);
    }
    // The next flush writes what is missing.
    fs::remove_dir_all(&block).expect("removed");
    store.flush().expect("nothing is in the way");
    let again = open();
    for text in &texts {
        assert_eq!(get(&again, &target, 0, text), 20);
    }
    assert_eq!(again.stats().refused, 0, "{:?}", again.refusals());
}
