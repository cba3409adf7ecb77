//! Random legal transitions.

use super::CachePromises;
use super::pair::{Pair, run};
use crate::conformance::report::{Report, Violation, distance, numbers};
use specdec_core::{KvCache, Phase, RowSpan, SeqId};

/// Sequences live at a time.
const LIVE: usize = 5;

pub(super) fn walk<C: KvCache>(
    pair: &mut Pair<C>,
    promises: &CachePromises,
    report: &mut Report,
) -> Result<(), Violation> {
    let mut next = LIVE as u64;
    let mut live: Vec<SeqId> = (0..next).map(SeqId).collect();
    pair.compare_lengths(report)?;
    for _ in 0..promises.transitions {
        match pair.draws.below(10) {
            0..=4 => verify(pair, &live, report)?,
            5 => {
                let rows = rows(pair, &live, 3);
                if !rows.is_empty() {
                    pair.pass(&rows, Phase::Verify, report)?;
                    pair.rollback(report)?;
                }
            }
            6 => draft(pair, &live, report)?,
            7 => export(pair, &live, report)?,
            8 => import(pair, &mut live, &mut next, report)?,
            _ => {
                let at = pair.draws.below(live.len());
                pair.evict(live[at], report)?;
                // A name is used again now and then: decoders do not, other users may.
                let fresh = SeqId(next % 24);
                if pair.draws.chance(0.7) && !live.contains(&fresh) {
                    live[at] = fresh;
                    next += 1;
                }
            }
        }
        if promises.bitwise {
            bits(pair, &live, report)?;
        }
    }
    Ok(())
}

/// Some of the live sequences in random order, with up to `most` tokens each that fit the context.
fn rows<C: KvCache>(pair: &mut Pair<C>, live: &[SeqId], most: usize) -> Vec<RowSpan> {
    let mut rows: Vec<RowSpan> = Vec::new();
    for &seq in live {
        let start = pair.plain.len(seq);
        let room = pair.spec.context - start;
        let len = (1 + pair.draws.below(most)).min(room);
        if len > 0 && pair.draws.chance(0.6) {
            let at = pair.draws.below(rows.len() + 1);
            rows.insert(at, RowSpan { seq, start, len });
        }
    }
    rows
}

fn verify<C: KvCache>(
    pair: &mut Pair<C>,
    live: &[SeqId],
    report: &mut Report,
) -> Result<(), Violation> {
    let rows = rows(pair, live, 6);
    if rows.is_empty() {
        return Ok(());
    }
    let phase = if pair.draws.chance(0.4) {
        Phase::Prefill
    } else {
        Phase::Verify
    };
    pair.pass(&rows, phase, report)?;
    let all = phase == Phase::Prefill || !pair.cache.can_rewind();
    let keep: Vec<usize> = rows
        .iter()
        .map(|row| {
            if all {
                row.len
            } else {
                pair.draws.below(row.len + 1)
            }
        })
        .collect();
    pair.commit(&keep, report)
}

/// Several draft passes that build on each other, not all of them with all rows, then a rollback.
fn draft<C: KvCache>(
    pair: &mut Pair<C>,
    live: &[SeqId],
    report: &mut Report,
) -> Result<(), Violation> {
    let mut rows = rows(pair, live, 2);
    for _ in 0..3 {
        rows.retain(|row| row.start + row.len <= pair.spec.context);
        if rows.is_empty() {
            break;
        }
        pair.pass(&rows, Phase::Draft, report)?;
        pair.compare_lengths(report)?;
        for row in &mut rows {
            row.start += row.len;
            row.len = 1;
        }
        if rows.len() > 1 && pair.draws.chance(0.4) {
            rows.pop();
        }
    }
    pair.rollback(report)
}

fn export<C: KvCache>(
    pair: &mut Pair<C>,
    live: &[SeqId],
    report: &mut Report,
) -> Result<(), Violation> {
    let seq = live[pair.draws.below(live.len())];
    let len = pair.plain.len(seq);
    let from = pair.draws.below(len + 1);
    let to = from + pair.draws.below(len - from + 1);
    pair.note(format!("export {seq} {from}..{to}"));
    let want = pair.plain.export(seq, from..to);
    let want = report.done("the reference exports", want, || pair.story())?;
    let got = match pair.cache.export(seq, from..to) {
        Err(_) if pair.may_be_dropped(from, len) => return Ok(()),
        got => report.done("committed entries can be copied out", got, || pair.story())?,
    };
    report.check(
        "a segment says what it covers",
        got.range == (from..to),
        || format!("{:?} instead of {from}..{to} {}", got.range, pair.story()),
    )?;
    let layers = got.layers.len();
    report.check(
        "a segment has every layer",
        layers == pair.spec.layers,
        || format!("{layers} layers {}", pair.story()),
    )?;
    for (layer, ((k, v), (want_k, want_v))) in got.layers.into_iter().zip(want.layers).enumerate() {
        let shapes = (k.dims(), v.dims());
        let wanted = [to - from, pair.spec.kv_heads, pair.spec.head_dim];
        report.check(
            "a segment has shape [len, Hkv, D]",
            shapes == (wanted, wanted),
            || {
                format!(
                    "layer {layer}: {shapes:?} instead of {wanted:?} {}",
                    pair.story()
                )
            },
        )?;
        let d =
            distance(&numbers(k), &numbers(want_k)).max(distance(&numbers(v), &numbers(want_v)));
        report.check("a segment holds what was committed", d <= 1e-5, || {
            format!(
                "layer {layer} of {seq} {from}..{to} is off by {d} {}",
                pair.story()
            )
        })?;
    }
    Ok(())
}

/// A new sequence that starts with a copy of another one's beginning, in one or two pieces.
fn import<C: KvCache>(
    pair: &mut Pair<C>,
    live: &mut [SeqId],
    next: &mut u64,
    report: &mut Report,
) -> Result<(), Violation> {
    let source = live[pair.draws.below(live.len())];
    let len = pair.plain.len(source);
    let to = pair.draws.below(len + 1);
    let cut = pair.draws.below(to + 1);
    let fresh = SeqId(*next % 24);
    if live.contains(&fresh) || to == 0 {
        return Ok(());
    }
    let mut pieces = Vec::new();
    for range in [0..cut, cut..to] {
        if range.is_empty() {
            continue;
        }
        let Ok(ours) = pair.cache.export(source, range.clone()) else {
            // The walk's exports judge this; here there is nothing to import.
            return Ok(());
        };
        let theirs = pair.plain.export(source, range);
        pieces.push((
            ours,
            report.done("the reference exports", theirs, || pair.story())?,
        ));
    }
    let at = pair.draws.below(live.len());
    pair.evict(live[at], report)?;
    live[at] = fresh;
    *next += 1;
    for (ours, theirs) in pieces {
        pair.note(format!("import {:?} of {source} as {fresh}", ours.range));
        let got = pair.cache.import(fresh, &ours);
        report.done("a segment that continues a sequence is taken", got, || {
            pair.story()
        })?;
        let want = pair.plain.import(fresh, &theirs);
        report.done("the reference imports", want, || pair.story())?;
    }
    pair.compare_lengths(report)
}

/// The same row alone, beside others, and cut into single tokens has the same bits.
fn bits<C: KvCache>(
    pair: &mut Pair<C>,
    live: &[SeqId],
    report: &mut Report,
) -> Result<(), Violation> {
    let rows = rows(pair, live, 4);
    let Some(last) = rows.last().copied() else {
        return Ok(());
    };
    let tokens: usize = rows.iter().map(|row| row.len).sum();
    let layers = pair.layers(tokens);
    let own: Vec<_> = layers
        .iter()
        .map(|(q, k, v)| {
            let from = tokens - last.len;
            let tail = |t: &burn::prelude::Tensor<3>| t.clone().narrow(0, from, last.len);
            (tail(q), tail(k), tail(v))
        })
        .collect();
    let all = run(&mut pair.cache, &rows, Phase::Verify, &layers);
    let all = report.done("a legal pass is taken", all, || pair.story())?;
    pair.cache.rollback();
    let alone = run(&mut pair.cache, &[last], Phase::Verify, &own);
    let alone = report.done("a legal pass is taken", alone, || pair.story())?;
    pair.cache.rollback();
    for (layer, (all, alone)) in all.iter().zip(&alone).enumerate() {
        let tail = &all[all.len() - alone.len()..];
        let same = tail
            .iter()
            .zip(alone)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        report.check(
            "a row has the same bits alone and beside others",
            same,
            || {
                format!(
                    "sequence {} at {}, layer {layer} {}",
                    last.seq,
                    last.start,
                    pair.story()
                )
            },
        )?;
    }
    let first: Vec<_> = own
        .iter()
        .map(|(q, k, v)| {
            let head = |t: &burn::prelude::Tensor<3>| t.clone().narrow(0, 0, 1);
            (head(q), head(k), head(v))
        })
        .collect();
    let single = run(
        &mut pair.cache,
        &[RowSpan { len: 1, ..last }],
        Phase::Verify,
        &first,
    );
    let single = report.done("a legal pass is taken", single, || pair.story())?;
    pair.cache.rollback();
    for (layer, (all, single)) in alone.iter().zip(&single).enumerate() {
        let same = all
            .iter()
            .zip(single)
            .all(|(a, b)| a.to_bits() == b.to_bits());
        report.check(
            "a token has the same bits in blocks of any length",
            same,
            || {
                format!(
                    "sequence {} at {}, layer {layer} {}",
                    last.seq,
                    last.start,
                    pair.story()
                )
            },
        )?;
    }
    Ok(())
}
