//! What a verify pass costs by the length of its draft, and what keeping rows aligned costs.

use super::decode::{Batch, K, cache};
use super::filled::entries;
use super::table::{Table, median, ms};
use specdec::core::{Block, KvCache, Phase, SeqId, TargetModel, Token};
use specdec::ragged::{AlignedCache, Alignment, SlotOptions};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A pass of `1 + k` tokens for each sequence, its best tokens read, and the given numbers of them kept.
fn pass(
    target: &dyn TargetModel,
    cache: &mut dyn KvCache,
    rows: usize,
    k: usize,
    keep: Option<&[usize]>,
) -> Result<Duration> {
    let spec = target.spec();
    let started = Instant::now();
    let mut block = Block::new(&spec.device);
    for row in 0..rows {
        let tokens: Vec<Token> = (0..=k)
            .map(|i| ((row * 31 + i * 7 + 3) % spec.vocab) as Token)
            .collect();
        block.push(SeqId(row as u64), cache.len(SeqId(row as u64)), &tokens);
    }
    let mut attend = cache.begin(block.rows(), Phase::Verify)?;
    let forward = target.forward(&block, &mut *attend, &[])?;
    drop(attend);
    let best = target
        .logits(forward.hidden)
        .argmax(1)
        .try_into_data()
        .map_err(|e| format!("{e:?}"))?;
    assert_eq!(best.iter::<i64>().count(), block.len());
    match keep {
        Some(keep) => cache.commit(keep)?,
        None => cache.rollback(),
    }
    Ok(started.elapsed())
}

/// Time of a pass with k drafts over one without, for one row.
///
/// # Errors
/// When a pass fails.
pub fn cost_by_length(
    table: &mut Table,
    name: &str,
    target: &dyn TargetModel,
    context: usize,
) -> Result<()> {
    let batch = Batch {
        rows: 1,
        context,
        new: 16,
    };
    let mut cache = cache(target, batch)?;
    cache.import(SeqId(0), &entries(target.spec(), context))?;
    let mut plain = None;
    for k in [0, 1, 2, 4, 7] {
        let mut failed = None;
        let time = median(7, || {
            pass(target, &mut cache, 1, k, None).unwrap_or_else(|error| {
                failed = Some(error);
                Duration::ZERO
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        let plain = *plain.get_or_insert(time);
        let ratio = time.as_secs_f64() / plain.as_secs_f64();
        let place = format!("1 row, {context} tokens of context");
        table.row(
            format!("c({k})"),
            name,
            place,
            format!("{ratio:.3} ({})", ms(time)),
        );
    }
    Ok(())
}

/// Rounds in which rows keep different numbers of tokens, by slots and by one rectangle that is moved
/// together before each pass.
///
/// # Errors
/// When a pass fails.
pub fn realign(
    table: &mut Table,
    name: &str,
    target: &dyn TargetModel,
    rows: usize,
    context: usize,
) -> Result<()> {
    let spec = target.spec();
    let batch = Batch {
        rows,
        context,
        new: 16 * (K + 1),
    };
    let options = SlotOptions {
        chunk: 64,
        ..SlotOptions::default()
    };
    let mut slots = cache(target, batch)?;
    let mut aligned = AlignedCache::with_options(spec, Alignment::All, &options)?;
    let meter = aligned.meter();
    let filled = entries(spec, context);
    let mut times = Vec::new();
    for cache in [&mut slots as &mut dyn KvCache, &mut aligned] {
        for row in 0..rows {
            cache.import(SeqId(row as u64), &filled)?;
        }
        let mut all = Vec::new();
        for round in 0..9 {
            let keep: Vec<usize> = (0..rows).map(|row| 1 + (row + round) % (K + 1)).collect();
            all.push(pass(target, cache, rows, K, Some(&keep))?);
        }
        let mut late = all.split_off(3);
        late.sort_unstable();
        times.push(late[late.len() / 2]);
    }
    let stats = meter.read();
    let moved = stats.moved_bytes / stats.realignments.max(1);
    let more = times[1].saturating_sub(times[0]);
    let figure = format!(
        "{} a round, {} by slots; {} more; {:.2} MB moved a round",
        ms(times[1]),
        ms(times[0]),
        ms(more),
        moved as f64 / 1e6,
    );
    table.row(
        "realigning",
        name,
        format!("{rows} rows, {context} tokens of context"),
        figure,
    );
    Ok(())
}
