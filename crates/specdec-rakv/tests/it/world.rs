//! Small worlds: an exact target, stores, decoders over the slot cache.

use burn::prelude::*;
use specdec_core::{
    Attend, Controller, Decoder, DecoderBuilder, Drafter, FixedLength, KvCache, KvSegment, Phase,
    Request, Result, RowSpan, SeqId, TargetModel, Token,
};
use specdec_ragged::{SlotCache, SlotOptions};
use specdec_rakv::{DiskOptions, Identity, PrefixStore, StoreOptions, StoredPrefixes, Write};
use specdec_testkit::HashLm;
use specdec_testkit::oracle::Continuations;
use specdec_testkit::scripted::ScriptedDrafter;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub(crate) type Target = Arc<dyn TargetModel>;

pub(crate) const VOCAB: usize = 40;

pub(crate) fn device() -> Device {
    Device::flex()
}

pub(crate) fn hash_lm() -> HashLm {
    HashLm::new(VOCAB, &device())
}

pub(crate) fn target() -> Target {
    Arc::new(hash_lm())
}

pub(crate) fn identity(target: &Target) -> Identity {
    Identity::of(target.spec()).expect("it has a fingerprint")
}

/// A store of blocks of 8 tokens in memory.
pub(crate) fn store(target: &Target) -> PrefixStore {
    store_of(target, 8)
}

pub(crate) fn store_of(target: &Target, block: usize) -> PrefixStore {
    let options = StoreOptions {
        block,
        ..StoreOptions::default()
    };
    PrefixStore::open(identity(target), options).expect("good options")
}

/// A store that writes every block to a folder at once.
pub(crate) fn on_disk(target: &Target, folder: &Path) -> PrefixStore {
    let options = StoreOptions {
        block: 8,
        disk: Some(DiskOptions {
            write: Write::OnStore,
            ..DiskOptions::new(folder)
        }),
        ..StoreOptions::default()
    };
    PrefixStore::open(identity(target), options).expect("a folder")
}

pub(crate) fn slots(target: &Target) -> SlotCache {
    let options = SlotOptions {
        chunk: 5,
        ..SlotOptions::default()
    };
    SlotCache::with_options(target.spec(), &options).expect("good options")
}

/// A decoder with a store and without a drafter.
pub(crate) fn builder(target: &Target, store: &PrefixStore) -> DecoderBuilder {
    Decoder::builder(Arc::clone(target))
        .cache(slots(target))
        .prefixes(StoredPrefixes::new(store.clone(), &device()))
        .prefill_chunk(11)
}

pub(crate) fn decoder(target: &Target, store: &PrefixStore) -> Decoder {
    builder(target, store).build().expect("the parts fit")
}

pub(crate) fn speculating(
    target: &Target,
    store: &PrefixStore,
    drafter: impl Drafter + 'static,
    controller: impl Controller + 'static,
) -> Decoder {
    builder(target, store)
        .drafter(drafter)
        .controller(controller)
        .build()
        .expect("the parts fit")
}

pub(crate) fn cold(target: &Target, prompt: &[Token], n: usize) -> Vec<Token> {
    let mut decoder = Decoder::builder(Arc::clone(target))
        .cache(slots(target))
        .build()
        .expect("the parts fit");
    let request = Request::new(prompt.to_vec()).max_new_tokens(n);
    decoder.generate(request).expect("decoding").tokens
}

/// Decodes `n` tokens and checks them against plain integers; how many tokens were reused.
pub(crate) fn warm(decoder: &mut Decoder, prompt: &[Token], n: usize) -> usize {
    let request = Request::new(prompt.to_vec()).max_new_tokens(n);
    let done = decoder.generate(request).expect("decoding");
    assert_eq!(
        done.tokens,
        hash_lm().greedy(prompt, n),
        "prompt {prompt:?}"
    );
    let (reused, prefilled) = (done.stats.reused, done.stats.prefilled);
    assert_eq!(reused + prefilled, prompt.len() as u64 - 1);
    reused as usize
}

/// A text of this length, another one for each seed.
pub(crate) fn text(seed: usize, len: usize) -> Vec<Token> {
    let token = |i: usize| (i * i + 7 * i * seed + 3 * seed + i / 3) % VOCAB;
    (0..len).map(|i| token(i) as Token).collect()
}

/// A drafter that is right with this probability.
pub(crate) fn often_right(prompts: &[Vec<Token>], right: f64) -> ScriptedDrafter {
    let known = prompts.iter().map(|p| (p.clone(), hash_lm().greedy(p, 80)));
    ScriptedDrafter::sometimes(Continuations::new(known), VOCAB, right, 4)
}

pub(crate) fn four() -> FixedLength {
    FixedLength(4)
}

/// Entries of tokens that only these tokens can have, in the target's shape: no model is needed.
pub(crate) fn entries(target: &Target, tokens: &[Token], range: Range<usize>) -> KvSegment {
    let spec = target.spec();
    let [heads, dim] = [spec.kv_heads, spec.head_dim];
    let mut hash = 17u64;
    let mut states = Vec::new();
    for token in tokens {
        hash = hash
            .wrapping_mul(6364136223846793005)
            .wrapping_add(u64::from(*token) + 1);
        states.push((hash >> 40) as f32);
    }
    let part = |salt: usize| {
        let numbers = states[range.clone()]
            .iter()
            .flat_map(|state| (0..heads * dim).map(move |i| state + (salt * 100 + i) as f32));
        let numbers: Vec<f32> = numbers.collect();
        Tensor::from_data(
            TensorData::new(numbers, [range.len(), heads, dim]),
            &device(),
        )
    };
    KvSegment {
        range: range.clone(),
        layers: (0..spec.layers)
            .map(|l| (part(2 * l), part(2 * l + 1)))
            .collect(),
    }
}

/// Stores the made-up entries of a text.
pub(crate) fn put(store: &PrefixStore, target: &Target, scope: u64, tokens: &[Token]) {
    let missing = store.missing(scope, tokens);
    if !missing.is_empty() {
        let entries = entries(target, tokens, missing);
        store
            .insert(scope, tokens, entries, 0.1)
            .expect("good entries");
    }
}

/// How much of a text a store has, checked entry by entry.
pub(crate) fn get(store: &PrefixStore, target: &Target, scope: u64, tokens: &[Token]) -> usize {
    let Some(lease) = store.lookup(scope, tokens, tokens.len()) else {
        return 0;
    };
    let got = lease.segment(&device()).expect("it has tokens");
    same(&got, &entries(target, tokens, 0..lease.tokens()));
    lease.tokens()
}

pub(crate) fn same(got: &KvSegment, want: &KvSegment) {
    assert_eq!(got.range, want.range);
    for (layer, (got, want)) in got.layers.iter().zip(&want.layers).enumerate() {
        assert_eq!(got.0.to_data(), want.0.to_data(), "keys of layer {layer}");
        assert_eq!(got.1.to_data(), want.1.to_data(), "values of layer {layer}");
    }
}

/// A cache that refuses imports, half-way through, and is otherwise the one inside.
pub(crate) struct Refusing(pub(crate) SlotCache, pub(crate) bool);

impl KvCache for Refusing {
    fn len(&self, seq: SeqId) -> usize {
        self.0.len(seq)
    }

    fn begin<'a>(&'a mut self, rows: &[RowSpan], phase: Phase) -> Result<Box<dyn Attend + 'a>> {
        self.0.begin(rows, phase)
    }

    fn commit(&mut self, keep: &[usize]) -> Result<()> {
        self.0.commit(keep)
    }

    fn rollback(&mut self) {
        self.0.rollback();
    }

    fn evict(&mut self, seq: SeqId) {
        self.0.evict(seq);
    }

    fn export(&self, seq: SeqId, range: Range<usize>) -> Result<KvSegment> {
        self.0.export(seq, range)
    }

    fn import(&mut self, seq: SeqId, segment: &KvSegment) -> Result<()> {
        let half = segment.clone().truncated(segment.range.end / 2);
        self.0.import(seq, &half)?;
        Err(specdec_core::CacheError::Full {
            needed: segment.range.end,
            available: segment.range.end / 2,
        }
        .into())
    }

    fn can_rewind(&self) -> bool {
        self.1
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}
