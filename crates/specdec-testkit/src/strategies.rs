use crate::HashLm;
use crate::oracle::Continuations;
use crate::scripted::{Mistakes, RandomController, RandomScheduler, ScriptedDrafter};
use burn::prelude::Device;
use proptest::prelude::*;
use specdec_core::{Request, Speculation, Token};

/// One request of a [`Scenario`].
#[derive(Debug, Clone)]
pub struct RowPlan {
    /// The prompt.
    pub prompt: Vec<Token>,
    /// Most tokens to emit.
    pub max_new: usize,
    /// Fewest tokens before an end.
    pub min_new: usize,
    /// Its end tokens.
    pub ends: Vec<Token>,
    /// Whether it is drafted for.
    pub speculation: Speculation,
    /// Steps that pass before it is submitted.
    pub arrives: usize,
}

impl RowPlan {
    /// The request, greedy.
    pub fn request(&self) -> Request {
        let mut request = Request::new(self.prompt.clone())
            .max_new_tokens(self.max_new)
            .end_tokens(self.ends.iter().copied())
            .speculation(self.speculation);
        request.limits.min_new_tokens = self.min_new.min(self.max_new);
        request
    }
}

/// A pool of requests and everything that may not change their output.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Seed of the language.
    pub language: u64,
    /// The model's context.
    pub context: usize,
    /// Whether the best logit is often shared.
    pub ties: bool,
    /// The model's sliding window, if it has one.
    pub window: Option<usize>,
    /// The requests.
    pub rows: Vec<RowPlan>,
    /// Probability that a drafted token is right.
    pub right: f64,
    /// Longest draft.
    pub k: usize,
    /// Prompt tokens per step.
    pub prefill_chunk: usize,
    /// Seed of controller, scheduler and drafter.
    pub seed: u64,
}

impl Scenario {
    /// The exact target.
    pub fn target(&self, device: &Device) -> HashLm {
        let mut model = HashLm::new(self.vocab, device)
            .seeded(self.language)
            .with_context(self.context);
        if self.ties {
            model = model.with_ties(2);
        }
        if let Some(window) = self.window {
            model = model.with_window(window, false);
        }
        model
    }

    /// What the target says after each prompt, by plain integers and without limits or ends.
    pub fn continuations(&self, model: &HashLm) -> Continuations {
        Continuations::new(self.rows.iter().map(|row| {
            let after = model.greedy(&row.prompt, row.max_new + self.k);
            (row.prompt.clone(), after)
        }))
    }

    /// A drafter that is right as often as the scenario says.
    pub fn drafter(&self, model: &HashLm) -> ScriptedDrafter {
        let mistakes = Mistakes::Sometimes {
            right: self.right,
            seed: self.seed,
        };
        ScriptedDrafter::new(self.continuations(model), self.vocab, mistakes)
    }

    /// Another draft length for every row and step.
    pub fn controller(&self) -> RandomController {
        RandomController::new(self.seed, self.k)
    }

    /// Another part of the pool at every step.
    pub fn scheduler(&self) -> RandomScheduler {
        RandomScheduler::new(self.seed)
    }
}

/// Prompts over a vocabulary, of 1 to 7 tokens.
pub fn prompt(vocab: usize) -> impl Strategy<Value = Vec<Token>> {
    prop::collection::vec(0..vocab as Token, 1..=7)
}

/// Up to two end tokens.
pub fn ends(vocab: usize) -> impl Strategy<Value = Vec<Token>> {
    prop::collection::vec(0..vocab as Token, 0..=2)
}

fn row(vocab: usize) -> impl Strategy<Value = RowPlan> {
    let speculation = prop_oneof![
        6 => Just(Speculation::On),
        1 => Just(Speculation::Off),
        1 => (0..4usize).prop_map(Speculation::AtMost),
    ];
    (
        prompt(vocab),
        1..=14usize,
        prop_oneof![3 => Just(0), 1 => 0..5usize],
        ends(vocab),
        speculation,
        prop_oneof![2 => Just(0), 1 => 0..4usize],
    )
        .prop_map(
            |(prompt, max_new, min_new, ends, speculation, arrives)| RowPlan {
                prompt,
                max_new,
                min_new,
                ends,
                speculation,
                arrives,
            },
        )
}

/// One to five requests over a vocabulary of 3, 5 or 20 tokens, with ends, limits, late arrivals,
/// drafters of every quality, short contexts and windows.
pub fn scenarios() -> impl Strategy<Value = Scenario> {
    let vocab = prop_oneof![Just(3usize), Just(5), Just(20)];
    vocab.prop_flat_map(|vocab| {
        let world = (
            0..8u64,
            prop_oneof![1 => 8..16usize, 3 => Just(64usize)],
            any::<bool>(),
            prop_oneof![2 => Just(None), 1 => (1..12usize).prop_map(Some)],
        );
        let speculation = (
            prop_oneof![Just(0.0), Just(0.3), Just(0.7), Just(0.95), Just(1.0)],
            1..=6usize,
            1..=8usize,
            any::<u64>(),
        );
        (world, prop::collection::vec(row(vocab), 1..=5), speculation).prop_map(
            move |((language, context, ties, window), rows, (right, k, prefill_chunk, seed))| {
                Scenario {
                    vocab,
                    language,
                    context,
                    ties,
                    window,
                    rows,
                    right,
                    k,
                    prefill_chunk,
                    seed,
                }
            },
        )
    })
}
