//! What speculation makes of the pair, and the card that says so.

use crate::model::TinyLm;
use crate::training::HeldOut;
use anyhow::{Result, ensure};
use specdec::DraftLength;
use specdec::core::{FinishReason, Stats};
use specdec::prelude::*;
use std::path::Path;

const PROMPTS: [&str; 10] = [
    "Tell me a story about a fox named Mia.",
    "Tell me a story about an owl named Leo.",
    "Tell me about the bear.",
    "Who is Rosa?",
    "The red kite is in the barn. The blue cup is under the bed. Where is the blue cup?",
    "Count from three to twelve.",
    "How do you make soup?",
    "Copy this note: On Friday Melun went home. The cow found the red hat on Sunday.",
    "Make a list of five fruits.",
    "Sing a song.",
];

/// Drafts of four tokens over the prompts.
#[derive(Default)]
pub struct Measured {
    drafted: u64,
    accepted: u64,
    rounds: u64,
}

impl Measured {
    fn add(&mut self, stats: &Stats) {
        self.drafted += stats.drafted;
        self.accepted += stats.accepted;
        self.rounds += stats.rounds;
    }

    fn line(&self) -> String {
        let rate = self.accepted as f64 / self.drafted.max(1) as f64;
        let length = 1.0 + self.accepted as f64 / self.rounds.max(1) as f64;
        format!(
            "{:.0} % of the drafts accepted, {length:.2} tokens a pass",
            100.0 * rate
        )
    }
}

/// Answers the prompts plainly and speculatively. Returns the counts of n-gram drafts and of the
/// draft model's.
pub fn measure(folder: &Path) -> Result<[Measured; 2]> {
    let target = Model::open(folder.join("target"))?;
    let draft = Model::open(folder.join("draft"))?;
    let mut plain = Generator::builder(&target).plain().build()?;
    let mut both = [Drafting::ngram(), Drafting::Model(draft)]
        .into_iter()
        .map(|drafting| {
            Generator::builder(&target)
                .drafting(drafting)
                .draft_length(DraftLength::Fixed(4))
                .build()
        })
        .collect::<specdec::Result<Vec<_>>>()?;
    let mut measured = [Measured::default(), Measured::default()];
    let options = Options::max_new_tokens(300);
    for prompt in PROMPTS {
        let wanted = plain.generate(Prompt::user(prompt), &options)?;
        let end = if wanted.finish == FinishReason::EndToken {
            ""
        } else {
            " ..."
        };
        println!("> {prompt}\n{}{end}\n", wanted.text);
        for (fast, counts) in both.iter_mut().zip(&mut measured) {
            let got = fast.generate(Prompt::user(prompt), &options)?;
            ensure!(
                got.tokens == wanted.tokens,
                "speculation changed the answer to {prompt:?}"
            );
            counts.add(&got.stats);
        }
    }
    Ok(measured)
}

/// What the card tells.
pub struct Card<'a> {
    pub models: [&'a TinyLm; 2],
    pub steps: [usize; 2],
    pub seconds: [f64; 2],
    pub seed: u64,
    pub held_out: HeldOut,
    pub measured: [Measured; 2],
}

impl Card<'_> {
    pub fn text(&self) -> Result<String> {
        let mut rows = String::new();
        for (i, name) in ["target", "draft"].into_iter().enumerate() {
            let tensors = self.models[i].tensors()?;
            let weights: usize = tensors.iter().map(|(_, _, values)| values.len()).sum();
            let s = self.models[i].sizes();
            rows += &format!(
                "| `{name}/` | {weights} | {} | {} | {} / {} x {} | {} | {} | {:.0} | {:.3} |\n",
                s.layers,
                s.hidden,
                s.heads,
                s.kv_heads,
                s.head_dim,
                s.wide,
                self.steps[i],
                self.seconds[i],
                self.held_out.losses[i],
            );
        }
        let (context, vocab) = (crate::model::CONTEXT, self.models[0].sizes().vocab);
        let agreement = 100.0 * self.held_out.agreement;
        let [ngram, draft] = &self.measured;
        let [steps, draft_steps] = self.steps;
        let seed = self.seed;
        Ok(format!(
            "# A tiny trained pair

Two small language models of one vocabulary, a target and a draft model, so that tests and demos see
realistic acceptance without a download. They tell little stories and answer simple questions about a made-up
world; they know nothing else.

| | weights | layers | hidden | heads / key heads x size | wide | steps | seconds | held-out loss |
|---|---|---|---|---|---|---|---|---|
{rows}
Llama architecture, tied embeddings, 16-bit floats, context {context} tokens. The vocabulary: {vocab} entries, byte-level
BPE with three special tokens; the chat template is ChatML. Losses are in nats
a token, users' words left out.

- **Data.** Texts from a seeded generator that is part of this repository
  (`examples/train_tiny_pair/corpus`), made while training; no text from elsewhere. Names in them are
  made up.
- **Training.** AdamW, cosine schedule, 1024 tokens a step, on Burn's CPU backend; what users say is
  read, not learnt. The draft model learns the target's probabilities.
- **Command.** `cargo run --release --example train_tiny_pair -- --out assets/tiny-pair --steps {steps} --draft-steps {draft_steps} --seed {seed}`
- **Agreement.** On held-out text both find the same token best at {agreement:.1} % of the places.
- **Greedy answers to ten prompts, drafts of four tokens.** Draft model: {}. N-gram look-up: {}.
- **Limits.** Made for tests. Sums, places asked for and copies of unknown words often go wrong; nothing
  it says is to be relied on.
- **Licence.** Apache-2.0.
",
            draft.line(),
            ngram.line(),
        ))
    }
}
