//! The models, and prompts drawn from them.

use crate::replay::{Known, Replay, Right};
use specdec::core::{
    BuildError, KvSegment, ModelSpec, PrefixCache, PrefixImport, PrefixQuery, TargetModel,
};
use specdec::draft::ModelDrafter;
use specdec::models::{GgufFile, ModelConfig, Transformer};
use specdec::prelude::*;
use specdec::ragged::SlotCache;
use specdec::rakv::{Identity, PrefixStore, StoreOptions, StoredPrefixes};
use specdec::{Backend, DeviceChoice, DraftLength};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The begin token.
const BEGIN: u32 = 0;
const SEED: u64 = 7;
/// What replay drafters may say wrongly is decided by it.
pub const REPLAY_SEED: u64 = 11;

/// Layers of a model given by the user that its dear drafters run.
const DEAR_LAYERS: usize = 4;

pub struct World {
    pub target: Model,
    /// A trained draft model, where there is one.
    pub draft: Option<Model>,
    dear: Arc<dyn TargetModel>,
    /// Nothing runs where no model is cheap.
    cheap: Option<Arc<dyn TargetModel>>,
}

/// What drafts cost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    Cheap,
    Dear,
}

impl Runs {
    pub fn name(self) -> &'static str {
        match self {
            Self::Cheap => "a cheap drafter",
            Self::Dear => "a dear drafter",
        }
    }
}

/// A drafter.
#[derive(Clone)]
pub struct Drafts {
    pub runs: Runs,
    /// For a replay drafter how often it is right, and what there is to say.
    pub replay: Option<(Right, Arc<Known>)>,
}

impl World {
    /// The tiny trained pair: dear drafters run its draft model, cheap ones the first of that one's two layers.
    pub fn tiny() -> Self {
        let pair = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/tiny-pair");
        let folder = pair.join("draft");
        let half = without_last_layer(&folder);
        let draft = open(&folder);
        let world = Self {
            target: open(&pair.join("target")),
            dear: draft.target().clone(),
            draft: Some(draft),
            cheap: Some(open(&half).target().clone()),
        };
        std::fs::remove_dir_all(half).expect("it was just made");
        world
    }

    /// A GGUF file: dear drafters run its first layers, cheap ones nothing.
    pub fn of(path: &Path) -> Self {
        let target = open(path);
        let file = GgufFile::open(path).expect("it opened before");
        let mut config = ModelConfig::from_gguf(&file).expect("it opened before");
        config.layers = DEAR_LAYERS.min(config.layers);
        let dear = Transformer::from_tensors(&config, &file, target.device());
        Self {
            dear: Arc::new(dear.expect("its first layers are there")),
            draft: None,
            cheap: None,
            target,
        }
    }

    /// A generator for one prompt at a time.
    pub fn generator(
        &self,
        drafts: Option<&Drafts>,
        length: DraftLength,
        prefixes: Option<&PrefixStore>,
    ) -> Generator {
        let mut builder = Generator::builder(&self.target).max_rows(1);
        builder = match drafts {
            None => builder.plain(),
            Some(drafts) => builder.drafting(self.drafting(drafts)).draft_length(length),
        };
        if let Some(store) = prefixes {
            let stored = StoredPrefixes::new(store.clone(), self.target.device());
            builder = builder.prefixes(Frozen(stored));
        }
        builder.build().expect("the parts fit")
    }

    fn drafting(&self, drafts: &Drafts) -> Drafting {
        match &drafts.replay {
            None => Drafting::Model(self.draft.clone().expect("a trained draft model")),
            Some((right, known)) => {
                let runs = match drafts.runs {
                    Runs::Cheap => self.cheap.as_ref(),
                    Runs::Dear => Some(&self.dear),
                };
                let inner = runs.map(|model| {
                    let cache = SlotCache::new(model.spec()).expect("it has heads");
                    ModelDrafter::new(model.clone(), cache)
                });
                let replay = Replay::new(inner, Arc::clone(known), right.clone(), REPLAY_SEED);
                Drafting::Custom(Box::new(replay))
            }
        }
    }

    /// A text of this many tokens, begin token included.
    pub fn text(&self, tokens: usize, seed: u64) -> Vec<u32> {
        self.go_on(&[BEGIN], tokens - 1, seed)
    }

    /// A text and `more` tokens drawn after it.
    pub fn go_on(&self, text: &[u32], more: usize, seed: u64) -> Vec<u32> {
        let options = options(more).temperature(1.0).seed(SEED << 32 | seed);
        let mut plain = self.generator(None, DraftLength::Fixed(0), None);
        let drawn = plain.generate(text.to_vec(), &options).expect("it fits");
        [text, &drawn.tokens].concat()
    }

    /// What the target says after each prompt.
    pub fn outputs(&self, prompts: &[(&[u32], usize)]) -> Vec<Vec<u32>> {
        let mut plain = self.generator(None, DraftLength::Fixed(0), None);
        let output = |(prompt, n): &(&[u32], usize)| {
            let done = plain.generate(prompt.to_vec(), &options(*n));
            done.expect("it fits").tokens
        };
        prompts.iter().map(output).collect()
    }

    /// A store that holds these texts.
    pub fn store(&self, texts: &[Vec<u32>]) -> PrefixStore {
        let identity = Identity::of(self.target.target().spec()).expect("it has a fingerprint");
        let store = PrefixStore::open(identity, StoreOptions::default()).expect("in memory");
        let mut filling = Generator::builder(&self.target)
            .plain()
            .prefixes(StoredPrefixes::new(store.clone(), self.target.device()))
            .build()
            .expect("the parts fit");
        for text in texts {
            filling
                .generate(text.clone(), &options(1))
                .expect("it fits");
        }
        store
    }
}

/// Greedy, exactly this many tokens.
pub fn options(tokens: usize) -> Options {
    let mut options = Options::max_new_tokens(tokens);
    options.ignore_end_tokens = true;
    options
}

fn open(path: &Path) -> Model {
    let device = DeviceChoice::Named(Backend::Flex, 0);
    Model::builder(path)
        .device(device)
        .open()
        .expect("the model opens")
}

/// A copy of a model's folder in which it has one layer less.
fn without_last_layer(folder: &Path) -> PathBuf {
    let copy = std::env::temp_dir().join(format!("specdec-adapting-{}", std::process::id()));
    std::fs::create_dir_all(&copy).expect("a temporary folder");
    for entry in std::fs::read_dir(folder).expect("the model's folder") {
        let entry = entry.expect("a file");
        std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("a copy");
    }
    let path = copy.join("config.json");
    let text = std::fs::read_to_string(&path).expect("its config");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let layers = config["num_hidden_layers"].as_u64().expect("layers");
    config["num_hidden_layers"] = (layers - 1).into();
    std::fs::write(&path, config.to_string()).expect("a copy");
    copy
}

/// Stored prefixes to which nothing is added, so that every run finds the same.
struct Frozen(StoredPrefixes);

impl PrefixCache for Frozen {
    fn fetch(&mut self, query: &PrefixQuery<'_>) -> Option<KvSegment> {
        self.0.fetch(query)
    }

    fn imported(&mut self, import: &PrefixImport<'_>) {
        self.0.imported(import);
    }

    fn missing(&self, _: &PrefixQuery<'_>) -> Range<usize> {
        0..0
    }

    fn store(&mut self, _: &PrefixQuery<'_>, _: specdec::core::Result<KvSegment>) {}

    fn check(&self, target: &ModelSpec) -> Result<(), BuildError> {
        self.0.check(target)
    }
}
