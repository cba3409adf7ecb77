//! What the rectangle does and what it counts.

use crate::world::device;
use burn::prelude::*;
use specdec_core::{CacheError, Error, KvCache, ModelSpec, Phase, RowSpan, SeqId};
use specdec_ragged::{AlignedCache, Alignment, SlotCache, SlotOptions};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 20;
const LAYERS: usize = 3;

fn spec() -> ModelSpec {
    let mut spec = ModelSpec::new(16, LAYERS, 8, &device()).with_heads(HEADS, KV_HEADS, DIM);
    spec.windows = vec![None, Some(7), Some(300)];
    spec
}

fn cache(alignment: Alignment) -> AlignedCache {
    let options = SlotOptions {
        chunk: 32,
        ..SlotOptions::default()
    };
    AlignedCache::with_options(&spec(), alignment, &options).expect("good options")
}

fn span(seq: u64, start: usize, len: usize) -> RowSpan {
    let seq = SeqId(seq);
    RowSpan { seq, start, len }
}

/// Numbers that depend on sequence, position, layer and `what` alone, `[len, heads, DIM]`.
fn numbers(row: &RowSpan, layer: usize, what: u64, heads: usize) -> Tensor<3> {
    let values = (0..row.len * heads * DIM).map(|i| {
        let place = (row.start * heads * DIM + i) as u64;
        let mut z = place * 7919 + row.seq.0 * 104_729 + layer as u64 * 1_299_709 + what;
        z = (z ^ (z >> 15)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((z >> 40) as f32 / (1 << 23) as f32) - 1.0
    });
    let values: Vec<f32> = values.collect();
    Tensor::from_data(TensorData::new(values, [row.len, heads, DIM]), &device())
}

/// One pass; the bits of every layer's output, row by row.
fn pass(cache: &mut dyn KvCache, rows: &[RowSpan], phase: Phase) -> Vec<Vec<u32>> {
    let mut attend = cache.begin(rows, phase).expect("a legal pass");
    let mut out = vec![Vec::new(); rows.len()];
    for layer in 0..LAYERS {
        let packed = |what, heads| {
            let parts = rows.iter().map(|row| numbers(row, layer, what, heads));
            Tensor::cat(parts.collect(), 0)
        };
        let (q, k, v) = (packed(3, HEADS), packed(1, KV_HEADS), packed(2, KV_HEADS));
        let got = attend.attend(layer, q, k, v).expect("shapes fit");
        let got = got.into_data().try_into_vec_as::<f32>().expect("f32");
        assert!(got.iter().all(|x| x.is_finite()), "C35: {rows:?}");
        let mut rest = got.as_slice();
        for (row, out) in rows.iter().zip(&mut out) {
            let (own, others) = rest.split_at(row.len * HEADS * DIM);
            out.extend(own.iter().map(|x| x.to_bits()));
            rest = others;
        }
    }
    out
}

fn padding(cache: &AlignedCache) -> Vec<(u64, usize, usize)> {
    let rows = cache.layout();
    rows.iter().map(|r| (r.seq.0, r.padding, r.len)).collect()
}

/// C2, C20 and the formula of section 2.1: each row moves by its own offset, rows that ended are
/// gone, the padding of the longest is none.
#[test]
fn each_row_moves_by_its_own_offset() {
    let mut cache = cache(Alignment::All);
    let meter = cache.meter();
    let rows = [span(0, 0, 5), span(1, 0, 5), span(2, 0, 5)];
    pass(&mut cache, &rows, Phase::Prefill);
    cache.commit(&[5, 5, 5]).expect("staged");
    let rows = [span(0, 5, 4), span(1, 5, 4), span(2, 5, 4)];
    pass(&mut cache, &rows, Phase::Verify);
    assert_eq!(meter.read().realignments, 0, "equal prompts");
    cache.commit(&[4, 1, 1]).expect("staged");

    let rows = [span(0, 9, 1), span(1, 6, 3), span(2, 6, 2)];
    pass(&mut cache, &rows, Phase::Verify);
    assert_eq!(padding(&cache), [(0, 0, 9), (1, 3, 6), (2, 3, 6)]);
    let stats = meter.read();
    assert_eq!((stats.realignments, stats.moved_rows), (1, 2));
    assert_eq!(stats.moved_bytes, (12 * cache.bytes_per_position()) as u64);
    assert!(cache.bytes_per_position() >= 2 * LAYERS * KV_HEADS * DIM * 4);
    assert_eq!(stats.padded_cells, 6);
    // All keep the same number: nothing moves.
    cache.commit(&[1, 1, 1]).expect("staged");
    let rows = [span(0, 10, 1), span(1, 7, 1), span(2, 7, 1)];
    pass(&mut cache, &rows, Phase::Verify);
    assert_eq!(meter.read().moved_rows, 2);
    // The longest ends and another comes: one move for both.
    cache.commit(&[1, 1, 0]).expect("staged");
    cache.evict(SeqId(0));
    let rows = [span(1, 8, 2), span(2, 7, 2), span(3, 0, 2)];
    pass(&mut cache, &rows, Phase::Verify);
    assert_eq!(padding(&cache), [(1, 0, 8), (2, 1, 7), (3, 8, 0)]);
    assert_eq!(meter.read().moved_rows, 4);
    // The last one alone shrinks the rectangle to its own length, and gives the memory back.
    cache.rollback();
    cache.evict(SeqId(1));
    pass(&mut cache, &[span(2, 7, 1)], Phase::Verify);
    assert_eq!(padding(&cache), [(2, 0, 7)]);
    assert_eq!(cache.held_columns(SeqId(2)), 32);
}

/// A prefill is aligned by where rows end, so that nothing moves when they are decoded next.
#[test]
fn prompts_are_written_where_they_stay() {
    let mut cache = cache(Alignment::All);
    let meter = cache.meter();
    let prompts = [span(0, 0, 12), span(1, 0, 3), span(2, 0, 7)];
    pass(&mut cache, &prompts, Phase::Prefill);
    cache.commit(&[12, 3, 7]).expect("staged");
    let rows = [span(0, 12, 2), span(1, 3, 2), span(2, 7, 2)];
    pass(&mut cache, &rows, Phase::Verify);
    assert_eq!(padding(&cache), [(0, 0, 12), (1, 9, 3), (2, 5, 7)]);
    assert_eq!(meter.read().realignments, 0);
    assert_eq!(meter.read().padded_cells, 2 * 14);
}

/// Rows that do not take part are aligned too, or left where they are.
#[test]
fn the_rows_of_a_pass_or_all() {
    for (alignment, moved) in [(Alignment::All, 2), (Alignment::Pass, 1)] {
        let mut cache = cache(alignment);
        let prompts = [span(0, 0, 6), span(1, 0, 6), span(2, 0, 9)];
        pass(&mut cache, &prompts[..2], Phase::Prefill);
        cache.commit(&[6, 6]).expect("staged");
        pass(&mut cache, &prompts[2..], Phase::Prefill);
        cache.commit(&[9]).expect("staged");
        pass(&mut cache, &[span(0, 6, 2), span(2, 9, 1)], Phase::Verify);
        assert_eq!(cache.stats().moved_rows, moved, "{alignment:?}");
        cache.commit(&[1, 1]).expect("staged");
        // Rows of one length need no move where only they are aligned.
        if alignment == Alignment::Pass {
            pass(&mut cache, &[span(1, 6, 3)], Phase::Verify);
            cache.commit(&[1]).expect("staged");
            assert_eq!(cache.stats().moved_rows, moved);
        }
    }
}

/// Draft passes of which rows drop out move nothing, and what is staged moves along with its row
/// when another joins.
#[test]
fn drafts_stay_where_they_are() {
    for alignment in [Alignment::All, Alignment::Pass] {
        let mut cache = cache(alignment);
        let mut slots = SlotCache::new(&spec()).expect("a cache");
        let mut both = |rows: &[RowSpan], phase, keep: Option<&[usize]>| {
            assert_eq!(pass(&mut cache, rows, phase), pass(&mut slots, rows, phase));
            if let Some(keep) = keep {
                cache.commit(keep).expect("staged");
                slots.commit(keep).expect("staged");
            }
            cache.stats().moved_rows
        };
        let prompts = [span(0, 0, 9), span(1, 0, 4), span(2, 0, 30)];
        both(&prompts[..2], Phase::Prefill, Some(&[9, 4]));
        both(&[span(0, 9, 1), span(1, 4, 1)], Phase::Draft, None);
        assert_eq!(both(&[span(1, 5, 1)], Phase::Draft, None), 0);
        let moved = both(&[span(2, 0, 30), span(1, 6, 2)], Phase::Draft, None);
        assert_eq!(moved, 0, "a row without entries makes nobody wait");
        cache.rollback();
        slots.rollback();
        assert_eq!(cache.len(SeqId(2)), 0);
        let rows = [span(0, 9, 2), span(1, 4, 2)];
        assert_eq!(
            pass(&mut cache, &rows, Phase::Verify),
            pass(&mut slots, &rows, Phase::Verify)
        );
    }
}

/// What is staged moves with its row.
#[test]
fn staged_entries_move_with_their_row() {
    let mut cache = cache(Alignment::Pass);
    let mut slots = SlotCache::new(&spec()).expect("a cache");
    for (row, phase) in [
        (span(0, 0, 40), Phase::Prefill),
        (span(1, 0, 4), Phase::Prefill),
    ] {
        assert_eq!(
            pass(&mut cache, &[row], phase),
            pass(&mut slots, &[row], phase)
        );
        cache.commit(&[row.len]).expect("staged");
        slots.commit(&[row.len]).expect("staged");
    }
    let drafts: [&[RowSpan]; 3] = [
        &[span(1, 4, 3)],
        &[span(1, 7, 1), span(0, 40, 2)],
        &[span(0, 42, 1), span(1, 8, 1)],
    ];
    for rows in drafts {
        let got = pass(&mut cache, rows, Phase::Draft);
        assert_eq!(got, pass(&mut slots, rows, Phase::Draft), "{rows:?}");
    }
    assert_eq!(cache.stats().moved_rows, 1);
    assert_eq!(
        cache.stats().moved_bytes,
        (7 * cache.bytes_per_position()) as u64
    );
}

/// To the bit what the slot cache gives, over rows longer than a kernel's block, with rejections
/// (C34: they are hidden, not zeroed), departures and arrivals.
#[test]
fn bits_are_those_of_the_slot_cache() {
    for alignment in [Alignment::All, Alignment::Pass] {
        let mut cache = cache(alignment);
        let mut slots = SlotCache::new(&spec()).expect("a cache");
        let mut lens = [270, 3, 130, 0, 41, 0];
        let prompts: Vec<RowSpan> = (0..5).map(|i| span(i, 0, lens[i as usize])).collect();
        let prompts: Vec<RowSpan> = prompts.into_iter().filter(|row| row.len > 0).collect();
        let keep: Vec<usize> = prompts.iter().map(|row| row.len).collect();
        let got = pass(&mut cache, &prompts, Phase::Prefill);
        assert_eq!(got, pass(&mut slots, &prompts, Phase::Prefill));
        cache.commit(&keep).expect("staged");
        slots.commit(&keep).expect("staged");
        for round in 0..24u64 {
            if round == 9 {
                for gone in [0, 2] {
                    cache.evict(SeqId(gone));
                    slots.evict(SeqId(gone));
                    lens[gone as usize] = 0;
                }
            }
            // Not every row runs; the sixth joins late.
            let runs = |i: &u64| !(i + round).is_multiple_of(3) && (*i != 5 || round > 5);
            let rows: Vec<RowSpan> = (0..6)
                .filter(runs)
                .map(|i| span(i, lens[i as usize], 1 + ((i * 5 + round * 3) % 7) as usize))
                .collect();
            let got = pass(&mut cache, &rows, Phase::Verify);
            assert_eq!(got, pass(&mut slots, &rows, Phase::Verify), "round {round}");
            let keep: Vec<usize> = rows
                .iter()
                .map(|row| 1 + (row.seq.0 as usize + round as usize) % row.len)
                .collect();
            for (row, keep) in rows.iter().zip(&keep) {
                lens[row.seq.0 as usize] += keep;
            }
            cache.commit(&keep).expect("staged");
            slots.commit(&keep).expect("staged");
        }
        assert!(cache.stats().realignments > 10, "{:?}", cache.stats());
    }
}

/// C33 and INV-7: what another sequence left in memory does no harm, numbers or not.
#[test]
fn what_memory_held_before_does_not_matter() {
    for junk in [1e4, f32::NAN] {
        let mut cache = cache(Alignment::All);
        let all = |heads| Tensor::<3>::full([60, heads, DIM], junk, &device());
        let mut attend = cache
            .begin(&[span(9, 0, 60)], Phase::Prefill)
            .expect("a legal pass");
        for layer in 0..LAYERS {
            let got = attend.attend(layer, all(HEADS), all(KV_HEADS), all(KV_HEADS));
            got.expect("shapes fit");
        }
        drop(attend);
        cache.commit(&[60]).expect("staged");
        cache.evict(SeqId(9));
        let mut slots = SlotCache::new(&spec()).expect("a cache");
        let mut lens = [30, 2];
        for round in 0..6 {
            let rows = match round {
                0 => [span(0, 0, 30), span(1, 0, 2)],
                _ => [span(0, lens[0], 3), span(1, lens[1], 3)],
            };
            let phase = if round == 0 {
                Phase::Prefill
            } else {
                Phase::Verify
            };
            let keep = if round == 0 { lens } else { [1, 1 + round % 3] };
            let got = pass(&mut cache, &rows, phase);
            assert_eq!(got, pass(&mut slots, &rows, phase), "{junk}, round {round}");
            cache.commit(&keep).expect("staged");
            slots.commit(&keep).expect("staged");
            if round > 0 {
                lens = [lens[0] + keep[0], lens[1] + keep[1]];
            }
        }
    }
}

/// A limit counts padding; a cache that is full says so and loses nothing.
#[test]
fn a_limit_counts_padding() {
    let options = SlotOptions {
        chunk: 4,
        preallocate: 8,
        max_positions: Some(23),
    };
    let mut cache =
        AlignedCache::with_options(&spec(), Alignment::All, &options).expect("good options");
    assert_eq!((cache.capacity(), cache.free_columns()), (Some(24), 8));
    assert!(cache.fits(&[span(0, 0, 24)]) && !cache.fits(&[span(0, 0, 25)]));
    pass(&mut cache, &[span(0, 0, 11)], Phase::Prefill);
    cache.commit(&[11]).expect("staged");
    // The second row would be short, and is padded to twelve columns all the same.
    assert!(cache.fits(&[span(1, 0, 1)]));
    pass(&mut cache, &[span(1, 0, 1), span(0, 11, 1)], Phase::Verify);
    cache.commit(&[1, 1]).expect("staged");
    assert!(!cache.fits(&[span(0, 12, 1), span(1, 1, 1)]));
    let full = cache
        .begin(&[span(0, 12, 1), span(1, 1, 1)], Phase::Verify)
        .map(|_| ())
        .expect_err("it is full");
    assert!(matches!(
        full,
        Error::Cache(CacheError::Full {
            needed: 2,
            available: 0
        })
    ));
    assert_eq!(padding(&cache), [(0, 0, 12), (1, 11, 1)]);
    cache.evict(SeqId(1));
    assert!(cache.fits(&[span(0, 12, 12)]));
    let none = SlotOptions {
        chunk: 0,
        ..SlotOptions::default()
    };
    assert!(AlignedCache::with_options(&spec(), Alignment::All, &none).is_err());
}
