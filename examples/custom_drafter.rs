//! A drafter of your own: it guesses that the target repeats the pair of tokens it said before. The
//! conformance suite at the end shows that it can never change the output.
//!
//! `cargo run --release --example custom_drafter`

use anyhow::{Result, ensure};
use specdec::burn::prelude::Device;
use specdec::core::{Decoder, Draft, DraftContext, Drafter, Request, RowDraft, TargetModel, Token};
use specdec::ragged::SlotCache;
use specdec_testkit::{HashLm, conformance};
use std::collections::HashMap;
use std::sync::Arc;

/// Remembers for every token which one followed it last, over all sequences.
#[derive(Default)]
struct Bigram {
    next: HashMap<Token, Token>,
}

impl Drafter for Bigram {
    fn name(&self) -> &'static str {
        "bigram"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> specdec::core::Result<Draft> {
        let mut rows = Vec::new();
        for row in cx.rows {
            for pair in row.tokens.windows(2) {
                self.next.insert(pair[0], pair[1]);
            }
            let mut tokens = Vec::new();
            let mut last = row.tokens.last();
            while let Some(next) = last
                .and_then(|t| self.next.get(t))
                .filter(|_| tokens.len() < row.k)
            {
                tokens.push(*next);
                last = Some(next);
            }
            rows.push(RowDraft::deterministic(tokens));
        }
        Ok(Draft { rows })
    }
}

fn main() -> Result<()> {
    let model = HashLm::new(12, &Device::flex());
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(SlotCache::new(model.spec())?)
        .drafter(Bigram::default())
        .build()?;
    let done = decoder.generate(Request::new([1, 2, 3]).max_new_tokens(100))?;
    ensure!(
        done.tokens == model.greedy(&[1, 2, 3], 100),
        "the output changed"
    );
    println!(
        "{} of {} drafts accepted, the same {} tokens",
        done.stats.accepted,
        done.stats.drafted,
        done.tokens.len()
    );

    let target: Arc<dyn TargetModel> = Arc::new(model);
    let report = conformance::drafter(&target, Bigram::default)?;
    for (check, times) in report.checks() {
        println!("  {times:4} x {check}");
    }
    Ok(())
}
