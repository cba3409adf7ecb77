//! What a cache must refuse, with which error, and that nothing changes when it does.

use super::CachePromises;
use super::pair::{Pair, run};
use crate::conformance::report::{Report, Violation};
use burn::prelude::*;
use specdec_core::{CacheError, Error, KvCache, ModelSpec, Phase, RowSpan, SeqId};

fn span(seq: u64, start: usize, len: usize) -> RowSpan {
    let seq = SeqId(seq);
    RowSpan { seq, start, len }
}

/// Checks that `result` is the cache error that `is` recognises.
fn refused<T>(
    report: &mut Report,
    check: &'static str,
    result: specdec_core::Result<T>,
    is: impl Fn(&CacheError) -> bool,
) -> Result<(), Violation> {
    let right = matches!(&result, Err(Error::Cache(e)) if is(e));
    report.check(check, right, || match result {
        Ok(_) => "it was taken".into(),
        Err(e) => format!("the error is: {e}"),
    })
}

pub(super) fn refusals<C: KvCache>(
    spec: &ModelSpec,
    promises: &CachePromises,
    make: &impl Fn(&ModelSpec) -> C,
    report: &mut Report,
) -> Result<(), Violation> {
    use CacheError as E;
    let mut pair = Pair::new(spec, promises, make(spec), 100);
    pair.pass(&[span(0, 0, 4), span(1, 0, 2)], Phase::Prefill, report)?;
    pair.commit(&[4, 2], report)?;

    let c = &mut pair.cache;
    let begun = c.begin(&[span(0, 3, 1)], Phase::Verify).map(drop);
    let start = |e: &E| {
        matches!(
            e,
            E::Start {
                row: 0,
                seq: SeqId(0),
                start: 3,
                len: 4
            }
        )
    };
    refused(
        report,
        "a row that starts too early is refused with Start",
        begun,
        start,
    )?;
    let begun = c
        .begin(&[span(0, 4, 1), span(1, 3, 1)], Phase::Verify)
        .map(drop);
    let start = |e: &E| {
        matches!(
            e,
            E::Start {
                row: 1,
                seq: SeqId(1),
                start: 3,
                len: 2
            }
        )
    };
    refused(
        report,
        "a row that starts too late is refused with Start",
        begun,
        start,
    )?;
    let begun = c
        .begin(&[span(0, 4, 1), span(0, 4, 1)], Phase::Verify)
        .map(drop);
    let twice = |e: &E| {
        matches!(
            e,
            E::Duplicate {
                first: 0,
                second: 1,
                ..
            }
        )
    };
    refused(
        report,
        "a sequence twice in a pass is refused with Duplicate",
        begun,
        twice,
    )?;
    let begun = c
        .begin(&[span(0, 4, 1), span(1, 2, 0)], Phase::Verify)
        .map(drop);
    let empty = |e: &E| matches!(e, E::EmptyRow { row: 1, .. });
    refused(
        report,
        "a row without tokens is refused with EmptyRow",
        begun,
        empty,
    )?;
    let none = |e: &E| matches!(e, E::NoPass);
    let committed = c.commit(&[1]);
    refused(
        report,
        "a commit without a pass is refused with NoPass",
        committed,
        none,
    )?;
    c.rollback();
    pair.compare_lengths(report)?;

    // An open pass survives what is refused meanwhile.
    pair.pass(&[span(1, 2, 3), span(0, 4, 2)], Phase::Verify, report)?;
    let c = &mut pair.cache;
    let begun = c.begin(&[span(0, 4, 1)], Phase::Verify).map(drop);
    let open = |e: &E| matches!(e, E::PassOpen);
    refused(
        report,
        "a second pass is refused with PassOpen",
        begun,
        open,
    )?;
    let begun = c.begin(&[span(0, 4, 1)], Phase::Draft).map(drop);
    refused(
        report,
        "a draft pass inside a pass is refused with PassOpen",
        begun,
        open,
    )?;
    let rows = |e: &E| matches!(e, E::KeepRows { keep: 1, rows: 2 });
    let committed = c.commit(&[1]);
    refused(
        report,
        "keep for other rows is refused with KeepRows",
        committed,
        rows,
    )?;
    let many = |e: &E| {
        matches!(
            e,
            E::KeepTooMany {
                row: 1,
                keep: 3,
                staged: 2
            }
        )
    };
    let committed = c.commit(&[1, 3]);
    refused(
        report,
        "keeping more than was staged is refused with KeepTooMany",
        committed,
        many,
    )?;
    let keep = if pair.cache.can_rewind() {
        [2, 1]
    } else {
        [3, 2]
    };
    pair.commit(&keep, report)?;

    draft_passes(&mut pair, report)?;
    tensors(&mut pair, report)?;
    segments(&mut pair, report)
}

fn draft_passes<C: KvCache>(pair: &mut Pair<C>, report: &mut Report) -> Result<(), Violation> {
    use CacheError as E;
    let len = pair.plain.len(SeqId(0));
    pair.pass(&[span(0, len, 2)], Phase::Draft, report)?;
    let c = &mut pair.cache;
    let draft = |e: &E| matches!(e, E::DraftPass);
    let committed = c.commit(&[1]);
    refused(
        report,
        "committing a draft is refused with DraftPass",
        committed,
        draft,
    )?;
    let open = |e: &E| matches!(e, E::PassOpen);
    let begun = c.begin(&[span(0, len, 1)], Phase::Verify).map(drop);
    refused(
        report,
        "a verify pass before the drafts are gone is refused",
        begun,
        open,
    )?;
    let late = |e: &E| matches!(e, E::Start { .. });
    let begun = c.begin(&[span(0, len, 1)], Phase::Draft).map(drop);
    refused(
        report,
        "a draft pass continues the staged drafts",
        begun,
        late,
    )?;
    pair.pass(&[span(0, len + 2, 1)], Phase::Draft, report)?;
    pair.rollback(report)?;
    pair.pass(&[span(0, len, 2)], Phase::Verify, report)?;
    pair.commit(&[2], report)
}

/// Tensors that do not fit, in a pass that is then rolled back.
fn tensors<C: KvCache>(pair: &mut Pair<C>, report: &mut Report) -> Result<(), Violation> {
    use CacheError as E;
    let rows = [span(1, pair.plain.len(SeqId(1)), 2)];
    let layers = pair.layers(3);
    let (q, k, v) = layers[0].clone();
    let cut = |t: &Tensor<3>| t.clone().narrow(0, 0, 2);
    let wide = |t: &Tensor<3>| t.clone().repeat_dim(1, 2);
    let shape = |e: &E| matches!(e, E::Shape { .. });
    let wrong = [
        (
            "q of another length is refused with Shape",
            q.clone(),
            cut(&k),
            cut(&v),
        ),
        (
            "k of another length is refused with Shape",
            cut(&q),
            k.clone(),
            cut(&v),
        ),
        (
            "v of another length is refused with Shape",
            cut(&q),
            cut(&k),
            v.clone(),
        ),
        (
            "k with other heads is refused with Shape",
            cut(&q),
            wide(&cut(&k)),
            cut(&v),
        ),
        (
            "q with other heads is refused with Shape",
            wide(&cut(&q)),
            cut(&k),
            cut(&v),
        ),
    ];
    for (check, q, k, v) in wrong {
        let begun = pair.cache.begin(&rows, Phase::Verify);
        let attended = begun
            .and_then(|mut attend| attend.attend(0, q, k, v))
            .map(drop);
        refused(report, check, attended, shape)?;
        pair.cache.rollback();
    }
    let layer = pair.spec.layers;
    let begun = pair.cache.begin(&rows, Phase::Verify);
    let attended = begun
        .and_then(|mut a| a.attend(layer, cut(&q), cut(&k), cut(&v)))
        .map(drop);
    let unknown = |e: &E| matches!(e, E::Layer { .. });
    refused(
        report,
        "a layer that does not exist is refused with Layer",
        attended,
        unknown,
    )?;
    pair.rollback(report)?;
    pair.pass(&rows, Phase::Verify, report)?;
    pair.commit(&[2], report)
}

fn segments<C: KvCache>(pair: &mut Pair<C>, report: &mut Report) -> Result<(), Violation> {
    use CacheError as E;
    let len = pair.plain.len(SeqId(0));
    let range = |e: &E| matches!(e, E::Range { .. });
    let exported = pair.cache.export(SeqId(0), 0..len + 1);
    refused(
        report,
        "copying what is not committed is refused with Range",
        exported,
        range,
    )?;
    let exported = pair.cache.export(SeqId(23), 0..1);
    refused(
        report,
        "copying from an unknown sequence is refused with Range",
        exported,
        range,
    )?;
    let segment = pair.plain.export(SeqId(0), 0..len);
    let segment = report.done("the reference exports", segment, || pair.story())?;
    let any = |_: &E| true;
    let imported = pair.cache.import(SeqId(1), &segment);
    refused(
        report,
        "a segment that does not continue the sequence is refused",
        imported,
        any,
    )?;
    let mut short = segment.clone();
    short.layers.pop();
    let imported = pair.cache.import(SeqId(22), &short);
    refused(
        report,
        "a segment without all layers is refused",
        imported,
        any,
    )?;
    let mut wide = segment;
    if let Some((k, _)) = wide.layers.first_mut() {
        *k = k.clone().repeat_dim(2, 2);
    }
    let imported = pair.cache.import(SeqId(22), &wide);
    refused(
        report,
        "a segment of another shape is refused",
        imported,
        any,
    )?;
    pair.compare_lengths(report)?;
    // Nothing of the refused segments shows.
    pair.pass(
        &[span(22, 0, 3), span(1, pair.plain.len(SeqId(1)), 1)],
        Phase::Verify,
        report,
    )?;
    pair.commit(&[3, 1], report)
}

/// Generations one after the other: memory does not grow once it has been warm.
pub(super) fn memory<C: KvCache>(
    spec: &ModelSpec,
    promises: &CachePromises,
    make: &impl Fn(&ModelSpec) -> C,
    report: &mut Report,
) -> Result<(), Violation> {
    let mut pair = Pair::new(spec, promises, make(spec), 101);
    let mut warm = 0;
    for generation in 0..12u64 {
        let (a, b) = (2 * generation + 100, 2 * generation + 101);
        pair.pass(&[span(a, 0, 20), span(b, 0, 9)], Phase::Prefill, report)?;
        pair.commit(&[20, 9], report)?;
        if generation % 3 == 0 {
            pair.pass(&[span(a, 20, 3)], Phase::Draft, report)?;
            pair.rollback(report)?;
        }
        let bytes = pair.cache.memory_bytes();
        // Draft passes are among the first four, what they leave behind is part of being warm.
        if generation < 4 {
            warm = bytes.max(warm);
        }
        let flat = bytes <= warm;
        report.check("memory is flat over generations that end", flat, || {
            format!("{warm} bytes when warm, {bytes} in generation {generation}")
        })?;
        pair.evict(SeqId(a), report)?;
        pair.evict(SeqId(b), report)?;
        pair.evict(SeqId(b), report)?;
    }
    Ok(())
}

/// A row of NaN hurts neither its neighbours, nor those that come after it, nor its own sequence
/// when it is rolled back.
pub(super) fn not_a_number<C: KvCache>(
    spec: &ModelSpec,
    promises: &CachePromises,
    make: &impl Fn(&ModelSpec) -> C,
    report: &mut Report,
) -> Result<(), Violation> {
    let mut pair = Pair::new(spec, promises, make(spec), 102);
    pair.pass(&[span(0, 0, 5), span(1, 0, 5)], Phase::Prefill, report)?;
    pair.commit(&[5, 5], report)?;
    let rows = [span(0, 5, 3), span(1, 5, 4), span(2, 0, 6)];
    let mut layers = pair.layers(13);
    // Rows 0 and 2 are not numbers.
    let good = Tensor::cat(
        vec![
            Tensor::<3>::full([3, 1, 1], f32::NAN, &spec.device),
            Tensor::zeros([4, 1, 1], &spec.device),
            Tensor::full([6, 1, 1], f32::NAN, &spec.device),
        ],
        0,
    );
    for (q, k, v) in &mut layers {
        *q = q.clone() + good.clone();
        *k = k.clone() + good.clone();
        *v = v.clone() + good.clone();
    }
    let want = run(&mut pair.plain, &rows, Phase::Verify, &layers);
    let want = report.done("the reference takes the pass", want, || pair.story())?;
    let got = run(&mut pair.cache, &rows, Phase::Verify, &layers);
    let got = report.done("a legal pass is taken", got, || pair.story())?;
    let width = spec.heads * spec.head_dim;
    for (want, got) in want.iter().zip(&got) {
        let own = 3 * width..7 * width;
        let d = match got.get(own.clone()) {
            Some(got) => crate::conformance::report::distance(&want[own], got),
            None => f32::INFINITY,
        };
        report.check(
            "a row of NaN does not hurt its neighbours",
            d <= promises.tolerance,
            || format!("the row beside it is off by {d}"),
        )?;
    }
    let keep = if pair.cache.can_rewind() {
        [0, 2, 0]
    } else {
        [3, 4, 6]
    };
    pair.commit(&keep, report)?;
    if !pair.cache.can_rewind() {
        pair.evict(SeqId(0), report)?;
    }
    pair.evict(SeqId(2), report)?;
    pair.note("three rows, two of NaN, rolled back; sequence #2 evicted".into());
    let starts = [0, 1, 3].map(|seq| pair.plain.len(SeqId(seq)));
    let rows = [span(0, starts[0], 2), span(1, starts[1], 2), span(3, 0, 6)];
    pair.pass(&rows, Phase::Verify, report)?;
    pair.commit(&[2, 2, 6], report)
}
