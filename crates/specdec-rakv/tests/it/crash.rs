//! A process that is killed while it writes leaves whole files.

use crate::world::*;
use specdec_core::Token;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FOLDER: &str = "SPECDEC_RAKV_CRASH_FOLDER";

/// The child's part: it writes until it is killed. Without the variable there is nothing to do.
#[test]
fn writer() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let target = target();
    let store = on_disk(&target, &folder);
    for seed in 0.. {
        put(&store, &target, 0, &long_text(seed));
    }
}

/// Another text for each seed, from its first block on.
fn long_text(seed: usize) -> Vec<Token> {
    [&[1000 + seed as Token][..], &text(seed, 39)].concat()
}

fn blocks(folder: &std::path::Path) -> usize {
    let folders = std::fs::read_dir(folder).into_iter().flatten().flatten();
    folders
        .flat_map(|entry| {
            std::fs::read_dir(entry.path())
                .into_iter()
                .flatten()
                .flatten()
        })
        .filter(|file| file.path().extension().is_some_and(|e| e == "safetensors"))
        .count()
}

/// P17, last sentence: killed with SIGKILL in the middle of writing, fifty times over.
#[test]
#[cfg(unix)]
fn p17_killed_while_writing() {
    let target = target();
    let folder = tempfile::tempdir().expect("a folder");
    let me = std::env::current_exe().expect("this test binary");
    let mut last = 0;
    for round in 0..50 {
        let mut child = Command::new(&me)
            .args(["--exact", "crash::writer", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a child");
        // It is killed once it has written something new, at another moment each time.
        let started = Instant::now();
        while blocks(folder.path()) <= last + round % 7 {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "the child writes nothing"
            );
            std::thread::sleep(Duration::from_micros(200 + 37 * round as u64));
        }
        child.kill().expect("killed");
        child.wait().expect("it is gone");
        last = blocks(folder.path());

        let store = on_disk(&target, folder.path());
        let stats = store.stats();
        assert_eq!(stats.refused, 0, "round {round}: {:?}", store.refusals());
        assert_eq!(stats.blocks, last, "round {round}");
        // Everything that is there is whole; texts are there up to the block being written.
        let mut found = 0;
        for seed in 0.. {
            let tokens = get(&store, &target, 0, &long_text(seed));
            assert!(
                tokens.is_multiple_of(8),
                "round {round}: {tokens} tokens of text {seed}"
            );
            found += tokens;
            if tokens == 0 && seed > 3 {
                break;
            }
        }
        assert!(found > 0, "round {round}");
        assert_eq!(
            store.stats().refused,
            0,
            "round {round}: {:?}",
            store.refusals()
        );
    }
}
