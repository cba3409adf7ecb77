//! Stored prefixes: entries that went to the host and to a file and came back.

use crate::Check;
use crate::margin::{plain, same};
use crate::world::{Target, hash_lm, prompt, slots, transformer};
use burn::prelude::*;
use specdec_core::{Decoder, FixedLength, Request, Token};
use specdec_draft::NgramDrafter;
use specdec_rakv::{DiskOptions, Identity, PrefixStore, StoreOptions, StoredPrefixes, Write};
use specdec_testkit::weights::Family;
use std::path::Path;
use std::sync::Arc;

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("the_exact_model_out_of_memory_and_out_of_files", exact),
    ("a_transformer_out_of_memory", transformer_out_of_memory),
];

fn store(target: &Target, folder: Option<&Path>) -> PrefixStore {
    let disk = folder.map(|folder| DiskOptions {
        write: Write::OnStore,
        ..DiskOptions::new(folder)
    });
    let options = StoreOptions {
        block: 8,
        disk,
        ..StoreOptions::default()
    };
    let identity = Identity::of(target.spec()).expect("it has a fingerprint");
    PrefixStore::open(identity, options).expect("a folder")
}

fn decoder(target: &Target, store: &PrefixStore) -> Decoder {
    Decoder::builder(target.clone())
        .cache(slots(target.spec()))
        .prefixes(StoredPrefixes::new(store.clone(), &target.spec().device))
        .drafter(NgramDrafter::default())
        .controller(FixedLength(3))
        .prefill_chunk(11)
        .build()
        .expect("the parts fit")
}

/// The tokens of a prompt and how many of its entries were reused.
fn warm(decoder: &mut Decoder, prompt: &[Token], new: usize) -> (Vec<Token>, u64) {
    let request = Request::new(prompt.to_vec()).max_new_tokens(new);
    let done = decoder.generate(request).expect("decoding");
    (done.tokens, done.stats.reused)
}

fn exact(device: &Device) {
    let model = hash_lm(device);
    let target: Target = Arc::new(model.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let first = prompt(33, 20);
    let longer = [first.clone(), prompt(9, 20)].concat();
    {
        let store = store(&target, Some(folder.path()));
        let mut decoder = decoder(&target, &store);
        for (text, reused) in [(&first, 0), (&first, 32), (&longer, 33)] {
            let want = model.greedy(text, 12);
            let got = warm(&mut decoder, text, 12);
            assert_eq!(
                (got.0, got.1 >= reused),
                (want, true),
                "{} of {reused} reused",
                got.1
            );
        }
    }
    // Another process's store over the same files.
    let store = store(&target, Some(folder.path()));
    let (tokens, reused) = warm(&mut decoder(&target, &store), &longer, 12);
    assert_eq!(tokens, model.greedy(&longer, 12));
    assert!(reused >= 32, "{reused} reused");
}

fn transformer_out_of_memory(device: &Device) {
    let target = transformer(Family::Qwen2, 5, device);
    let store = store(&target, None);
    let text = prompt(50, 288);
    let want = plain(&target, std::slice::from_ref(&text), 12).remove(0);
    let mut decoder = decoder(&target, &store);
    for round in 0..2 {
        let (tokens, reused) = warm(&mut decoder, &text, 12);
        same(&want, &tokens, &format!("round {round}"));
        assert_eq!(reused > 40, round == 1, "{reused} reused");
    }
}
