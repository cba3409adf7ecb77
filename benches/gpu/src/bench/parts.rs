//! Where a round's time goes with drafters that have parts.

use super::decode::{Batch, K, cache, prompts};
use super::filled::Filled;
use super::table::{Table, ms};
use specdec::core::{Decoder, Drafter, FixedLength, KvCache, Request, Stats, TargetModel};
use specdec::lilicorr::{
    DFlashDrafter, DraftConfig, DraftModel, HeadConfig, LayerKind, LiLiCorrDrafter,
};
use specdec::vegas::{Vegas, VegasConfig, VegasDrafter};
use std::sync::Arc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const NEW: usize = 24;

/// The counts of one row from its second step on.
fn stats(
    target: &Arc<dyn TargetModel>,
    cache: Box<dyn KvCache>,
    drafter: Box<dyn Drafter>,
    (context, filled): (usize, bool),
) -> Result<Stats> {
    let mut builder = Decoder::builder(Arc::clone(target))
        .cache_boxed(cache)
        .drafter_boxed(Some(drafter))
        .controller(FixedLength(K));
    if filled {
        builder = builder.prefixes(Filled::new(target.spec(), context));
    }
    let mut decoder = builder.build()?;
    let batch = Batch {
        rows: 1,
        context,
        new: NEW,
    };
    for prompt in prompts(batch, target.spec().vocab) {
        decoder.submit(Request::new(prompt).max_new_tokens(NEW))?;
    }
    // Kernels are compiled in the first rounds.
    while decoder.stats().rounds < 3 && !decoder.is_idle() {
        decoder.step()?;
    }
    let mut before = decoder.stats().clone();
    decoder.run()?;
    let after = decoder.stats();
    before.rounds = after.rounds - before.rounds;
    before.emitted = after.emitted - before.emitted;
    before.draft_time = after.draft_time - before.draft_time;
    before.verify_time = after.verify_time - before.verify_time;
    before.settle_time = after.settle_time - before.settle_time;
    Ok(before)
}

/// Drafting with few keys, verifying with all: how a round divides.
///
/// # Errors
/// When a step fails.
pub fn vegas(
    table: &mut Table,
    name: &str,
    target: &Arc<dyn TargetModel>,
    context: usize,
) -> Result<()> {
    let spec = target.spec();
    let batch = Batch {
        rows: 1,
        context,
        new: NEW,
    };
    let kept = Vegas::new(
        cache(&**target, batch)?,
        spec,
        VegasConfig::default().check()?,
    );
    let meter = kept.meter();
    let stats = stats(
        target,
        Box::new(kept),
        Box::new(VegasDrafter::new()),
        (context, true),
    )?;
    let (rounds, seen) = (stats.rounds.max(1) as u32, meter.read());
    let figure = format!(
        "a round: {} drafting {K} tokens, {} verifying; {} weights to the host and {} choosing in the whole run; \
         drafts attend to {:.0} % of the keys",
        ms(stats.draft_time / rounds),
        ms(stats.verify_time / rounds),
        ms(seen.collect_time),
        ms(seen.select_time),
        100.0 * seen.attended_share().unwrap_or(1.0),
    );
    table.row(
        "Vegas",
        name,
        format!("1 row, {context} tokens of context"),
        figure,
    );
    Ok(())
}

/// A block drafter with random weights, with its head and without.
///
/// # Errors
/// When a step fails.
pub fn lilicorr(
    table: &mut Table,
    name: &str,
    target: &Arc<dyn TargetModel>,
    context: usize,
) -> Result<()> {
    let spec = target.spec();
    let config = DraftConfig {
        hidden: spec.hidden,
        layers: vec![LayerKind::Full; 5.min(spec.layers)],
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        intermediate: 3 * spec.hidden,
        rms_eps: 1e-6,
        rope_theta: 1e6,
        vocab: spec.vocab,
        target_layers: spec.layers,
        taps: DraftConfig::usual_taps(spec.layers, 5.min(spec.layers)),
        mask_token: spec.vocab as u32 - 1,
        block_size: 16,
        draft_vocab: None,
        head: Some(HeadConfig::new(256, 64)),
    };
    let model = DraftModel::new(&config, 1, &spec.device)?;
    let mut drafting = Vec::new();
    let mut verify = Vec::new();
    for head in [false, true] {
        let drafter: Box<dyn Drafter> = if head {
            Box::new(LiLiCorrDrafter::new(model.clone(), &**target)?)
        } else {
            Box::new(DFlashDrafter::new(model.clone().without_head(), &**target)?)
        };
        let batch = Batch {
            rows: 1,
            context,
            new: NEW,
        };
        let stats = stats(
            target,
            Box::new(cache(&**target, batch)?),
            drafter,
            (context, false),
        )?;
        let rounds = stats.rounds.max(1) as u32;
        drafting.push(stats.draft_time / rounds);
        verify.push(stats.verify_time / rounds);
    }
    let head = drafting[1].saturating_sub(drafting[0]);
    let round = drafting[1] + verify[1];
    let figure = format!(
        "a round: {} block drafter, {} head ({:.1} % of the round), {} verifying",
        ms(drafting[0]),
        ms(head),
        100.0 * head.as_secs_f64() / round.as_secs_f64(),
        ms(verify[1]),
    );
    table.row(
        "LiLiCorr",
        name,
        format!("1 row, {context} tokens of context"),
        figure,
    );
    Ok(())
}
