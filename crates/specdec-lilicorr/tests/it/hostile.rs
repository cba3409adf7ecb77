//! Checkpoints from strangers: whatever is in them, loading ends with a drafter that drafts or with an
//! error, in little time and memory.

use crate::world::{device, model, target};
use serde_json::json;
use specdec_core::TargetModel;
use specdec_lilicorr::{DraftConfig, DraftModel, HeadConfig, LayerKind, LiLiCorrDrafter};
use specdec_testkit::hostile::{Campaign, CampaignReport, CountingAllocator, Mutator, measured};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name)
}

/// Tells the counts where they can be read without stopping the test.
fn told(report: &CampaignReport) {
    writeln!(std::io::stderr(), "{report}").expect("standard error is open");
    assert!(report.accepted > 0 && report.reasons > 3, "{report}");
}

/// As small as a drafter with a head gets.
fn small() -> DraftConfig {
    let head = HeadConfig {
        candidates: 3,
        layers: 1,
        heads: 2,
        ..HeadConfig::new(4, 2)
    };
    DraftConfig {
        layers: vec![LayerKind::Full, LayerKind::Sliding(8)],
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        intermediate: 4,
        block_size: 4,
        draft_vocab: Some((0..288).step_by(3).collect()),
        head: Some(head),
        ..crate::world::config(&target(1))
    }
}

/// Loads the folder, and drafts where the drafter is made for the target.
fn used(folder: &Path, target: &Arc<dyn TargetModel>) -> Result<(), String> {
    let loaded = DraftModel::load(folder, &device()).map_err(|e| e.to_string())?;
    let drafter = LiLiCorrDrafter::new(loaded, &**target).map_err(|e| e.to_string())?;
    let mut decoder = crate::world::decoder(target, drafter, 3, 8);
    let request = specdec_core::Request::new(vec![1, 2, 3]).max_new_tokens(4);
    // Whatever it drafts, the output is the target's.
    decoder.generate(request).map_err(|e| e.to_string())?;
    Ok(())
}

fn campaign(name: &str, file: &str, mutate: fn(&mut Mutator, &[u8]) -> Vec<u8>) {
    let folder = tempfile::tempdir().expect("a folder");
    model(&small(), 3).save(folder.path()).expect("written");
    let target: Arc<dyn TargetModel> = Arc::new(target(1));
    let path = folder.path().join(file);
    let report = Campaign::new(name)
        .input(fs::read(&path).expect("it was written"))
        .corpus(corpus(name))
        .cases(200)
        .run(mutate, |bytes| {
            fs::write(&path, bytes).expect("written");
            used(folder.path(), &target)
        });
    told(&report);
}

#[test]
fn t36_hostile_configurations() {
    campaign("draft-config", "config.json", |mutator, bytes| {
        mutator.json(bytes)
    });
}

#[test]
fn t36_hostile_tensors() {
    campaign("draft-tensors", "model.safetensors", |mutator, bytes| {
        mutator.safetensors(bytes)
    });
}

/// A configuration that asks for more than the file holds makes nothing of that size.
#[test]
fn t36_absurd_sizes_do_not_allocate() {
    let folder = tempfile::tempdir().expect("a folder");
    model(&small(), 3).save(folder.path()).expect("written");
    let path = folder.path().join("config.json");
    let good: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).expect("a file")).expect("JSON");
    let head = |key: &str| format!("/dflash_config/lilicorr_{key}");
    let large = json!(1 << 20);
    let changes = [
        vec![
            ("/vocab_size".to_owned(), json!(1 << 24)),
            ("/draft_vocab_size".to_owned(), json!(null)),
            (head("candidate_topk"), json!(1 << 23)),
        ],
        vec![(head("factor_dim"), large.clone())],
        vec![(head("num_layers"), large.clone())],
        vec![
            (head("num_layers"), large.clone()),
            (head("hidden_size"), json!(1)),
            (head("num_heads"), json!(1)),
            (head("mlp_ratio"), json!(1)),
        ],
        vec![
            (head("hidden_size"), large.clone()),
            (head("num_heads"), large.clone()),
        ],
        vec![(head("mlp_ratio"), json!(1 << 18))],
        vec![("/intermediate_size".to_owned(), large.clone())],
        vec![
            ("/num_attention_heads".to_owned(), json!(1 << 24)),
            ("/head_dim".to_owned(), json!(1 << 24)),
        ],
        vec![("/hidden_size".to_owned(), json!(1 << 24))],
        vec![
            ("/num_hidden_layers".to_owned(), json!(4096)),
            ("/layer_types".to_owned(), json!(null)),
        ],
        vec![
            ("/num_target_layers".to_owned(), json!(1 << 24)),
            (
                "/dflash_config/target_layer_ids".to_owned(),
                json!((0..100_000).collect::<Vec<_>>()),
            ),
        ],
        vec![
            ("/block_size".to_owned(), json!(4096)),
            (head("num_heads"), json!(1)),
            (head("hidden_size"), json!(1 << 20)),
        ],
    ];
    for change in changes {
        let mut config = good.clone();
        for (place, value) in &change {
            *config.pointer_mut(place).expect("it is there") = value.clone();
        }
        fs::write(&path, config.to_string()).expect("written");
        let (loaded, memory) = measured(1 << 30, || {
            DraftModel::load(folder.path(), &device()).map(drop)
        });
        assert!(loaded.is_err(), "{change:?}");
        assert!(memory < 64 << 20, "{change:?}: {memory} bytes");
    }
}

/// A file that does not end, such as a device or a pipe, is no drafter's.
#[cfg(unix)]
#[test]
fn t36_files_that_do_not_end_are_refused() {
    for name in ["config.json", "model.safetensors"] {
        let folder = tempfile::tempdir().expect("a folder");
        model(&small(), 3).save(folder.path()).expect("written");
        fs::remove_file(folder.path().join(name)).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", folder.path().join(name)).expect("a link");
        let error = DraftModel::load(folder.path(), &device()).expect_err("refused");
        assert!(error.to_string().contains(name), "{error}");
    }
}
