//! The caches against plain vectors: any order of admit, begin, commit, rollback, evict, export
//! and import, with every content a number that occurs once.

use burn::prelude::*;
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use specdec_core::{KvCache, ModelSpec, Phase, RowSpan, SeqId};
use specdec_ragged::{AlignedCache, Alignment, SlotCache, SlotOptions};
use std::collections::BTreeMap;

const LAYERS: usize = 2;
const KV_HEADS: usize = 2;
const DIM: usize = 4;
const CHUNK: usize = 3;

#[derive(Debug, Clone)]
struct Model {
    /// Committed contents; each entry is a number that was never used before.
    content: BTreeMap<u64, Vec<u32>>,
    open: Option<Open>,
    next: u32,
}

#[derive(Debug, Clone)]
struct Open {
    phase: Phase,
    /// Sequence, number of tokens staged by earlier draft passes, contents of this pass.
    rows: Vec<(u64, Vec<u32>)>,
    staged: BTreeMap<u64, Vec<u32>>,
}

#[derive(Debug, Clone)]
enum Op {
    Begin {
        rows: Vec<(u64, usize)>,
        phase: Phase,
    },
    WrongStart {
        seq: u64,
        off: usize,
    },
    Commit {
        keep: Vec<usize>,
    },
    CommitTooMuch,
    Rollback,
    Evict(u64),
    Copy {
        from: u64,
        to: u64,
    },
}

impl Model {
    fn len(&self, seq: u64) -> usize {
        self.content.get(&seq).map_or(0, Vec::len)
    }

    fn staged(&self, seq: u64) -> usize {
        self.open
            .as_ref()
            .and_then(|o| o.staged.get(&seq))
            .map_or(0, Vec::len)
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Op;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self {
            content: BTreeMap::new(),
            open: None,
            next: 1,
        })
        .boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Op> {
        let seqs = || 0u64..4;
        let phase = prop_oneof![
            2 => Just(Phase::Prefill),
            3 => Just(Phase::Verify),
            2 => Just(Phase::Draft)
        ];
        let rows = proptest::collection::btree_map(seqs(), 1usize..6, 1..4)
            .prop_map(|rows| rows.into_iter().collect::<Vec<_>>())
            .prop_shuffle();
        let begin = (rows, phase).prop_map(|(rows, phase)| Op::Begin { rows, phase });
        let rest = prop_oneof![
            1 => seqs().prop_map(Op::Evict),
            1 => (seqs(), 1usize..3).prop_map(|(seq, off)| Op::WrongStart { seq, off }),
            1 => (seqs(), seqs()).prop_map(|(from, to)| Op::Copy { from, to }),
            1 => Just(Op::Rollback),
            1 => Just(Op::CommitTooMuch),
        ];
        match &state.open {
            None => prop_oneof![3 => begin, 1 => rest].boxed(),
            Some(open) => {
                let lens: Vec<usize> = open.rows.iter().map(|(_, new)| new.len()).collect();
                let keep = lens
                    .into_iter()
                    .map(|len| 0..=len)
                    .collect::<Vec<_>>()
                    .prop_map(|keep| Op::Commit { keep });
                prop_oneof![3 => keep, 1 => begin, 1 => rest].boxed()
            }
        }
    }

    fn apply(mut state: Self, op: &Op) -> Self {
        match op {
            Op::Begin { rows, phase } => {
                let mut staged = match &state.open {
                    None => BTreeMap::new(),
                    Some(open) if open.phase == Phase::Draft && *phase == Phase::Draft => {
                        open.staged.clone()
                    }
                    Some(_) => return state,
                };
                let mut new = Vec::new();
                for &(seq, len) in rows {
                    let contents: Vec<u32> = (0..len as u32).map(|i| state.next + i).collect();
                    state.next += len as u32;
                    staged.entry(seq).or_default().extend(&contents);
                    new.push((seq, contents));
                }
                state.open = Some(Open {
                    phase: *phase,
                    rows: new,
                    staged,
                });
            }
            Op::Commit { keep } => {
                if state.open.as_ref().is_some_and(|o| o.phase != Phase::Draft)
                    && let Some(open) = state.open.take()
                {
                    for ((seq, new), &keep) in open.rows.iter().zip(keep) {
                        state.content.entry(*seq).or_default().extend(&new[..keep]);
                    }
                }
            }
            Op::Rollback => state.open = None,
            Op::Evict(seq) => {
                state.content.remove(seq);
                if let Some(open) = &mut state.open {
                    open.staged.remove(seq);
                    for row in open.rows.iter_mut().filter(|(s, _)| s == seq) {
                        row.1.clear();
                    }
                }
            }
            Op::Copy { from, to } => {
                if state.open.is_none() && from != to && state.len(*from) > state.len(*to) {
                    let (a, b) = (state.len(*to), state.len(*from));
                    let copied = state.content[from][a..b].to_vec();
                    state.content.entry(*to).or_default().extend(copied);
                }
            }
            Op::WrongStart { .. } | Op::CommitTooMuch => {}
        }
        state
    }
}

/// A kind of cache, and how its memory is counted.
trait Kind {
    type Cache: KvCache;
    fn make(spec: &ModelSpec, options: &SlotOptions) -> Self::Cache;
    /// Positions a sequence holds memory for, those in chunks that are free, and bytes of one.
    fn memory(cache: &Self::Cache, seq: SeqId) -> (usize, usize, usize);
}

struct Slots;

impl Kind for Slots {
    type Cache = SlotCache;

    fn make(spec: &ModelSpec, options: &SlotOptions) -> SlotCache {
        SlotCache::with_options(spec, options).expect("good options")
    }

    fn memory(cache: &SlotCache, seq: SeqId) -> (usize, usize, usize) {
        let held = cache.held_positions(seq);
        (held, cache.free_positions(), cache.bytes_per_position())
    }
}

/// Aligned as a whole, or the rows of each pass.
struct Aligned<const ALL: bool>;

impl<const ALL: bool> Kind for Aligned<ALL> {
    type Cache = AlignedCache;

    fn make(spec: &ModelSpec, options: &SlotOptions) -> AlignedCache {
        let alignment = if ALL { Alignment::All } else { Alignment::Pass };
        AlignedCache::with_options(spec, alignment, options).expect("good options")
    }

    fn memory(cache: &AlignedCache, seq: SeqId) -> (usize, usize, usize) {
        let held = cache.held_columns(seq);
        (held, cache.free_columns(), cache.bytes_per_position())
    }
}

struct Real<K: Kind> {
    cache: K::Cache,
    device: Device,
    /// The reference before the operation at hand.
    before: Model,
}

fn key(content: u32, layer: usize) -> f32 {
    content as f32 + 0.25 * layer as f32
}

/// `[n, KV_HEADS, DIM]` filled with each content's number.
fn filled(contents: &[u32], layer: usize, sign: f32, device: &Device) -> Tensor<3> {
    let values: Vec<f32> = contents
        .iter()
        .flat_map(|&c| std::iter::repeat_n(sign * key(c, layer), KV_HEADS * DIM))
        .collect();
    Tensor::from_data(
        TensorData::new(values, [contents.len(), KV_HEADS, DIM]),
        device,
    )
}

fn read(tensor: &Tensor<3>) -> Vec<f32> {
    tensor.to_data().try_into_vec_as::<f32>().expect("f32 data")
}

impl<K: Kind> Real<K> {
    /// Runs an opened pass: all layers, queries of zeros, so that each output is the mean of the
    /// values its token sees. They must be its sequence's contents up to itself.
    fn run(&mut self, rows: &[RowSpan], phase: Phase, after: &Model) {
        let before = &self.before;
        let open = after
            .open
            .as_ref()
            .expect("the reference has opened a pass");
        let contents: Vec<u32> = open.rows.iter().flat_map(|(_, new)| new.clone()).collect();
        let mut attend = self
            .cache
            .begin(rows, phase)
            .expect("a pass the reference allows");
        for layer in 0..LAYERS {
            let k = filled(&contents, layer, 1.0, &self.device);
            let v = filled(&contents, layer, -1.0, &self.device);
            let q = Tensor::zeros([contents.len(), 2 * KV_HEADS, DIM], &self.device);
            let out = read(&attend.attend(layer, q, k, v).expect("shapes fit"));
            let mut token = 0;
            for (seq, new) in &open.rows {
                let mut seen = before.content.get(seq).cloned().unwrap_or_default();
                if let Some(earlier) = before.open.as_ref().and_then(|o| o.staged.get(seq)) {
                    seen.extend(earlier);
                }
                for &content in new {
                    seen.push(content);
                    let mean = seen.iter().map(|&c| f64::from(-key(c, layer))).sum::<f64>()
                        / seen.len() as f64;
                    for got in &out[token * 2 * KV_HEADS * DIM..][..2 * KV_HEADS * DIM] {
                        let off = (f64::from(*got) - mean).abs() / mean.abs().max(1.0);
                        assert!(
                            off < 1e-5,
                            "token {token} of layer {layer}: {got} for {mean}"
                        );
                    }
                    token += 1;
                }
            }
        }
    }
}

impl<K: Kind> StateMachineTest for Real<K> {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(start: &Model) -> Self {
        let device = Device::flex();
        let spec = ModelSpec::new(10, LAYERS, KV_HEADS * 2 * DIM, &device).with_heads(
            2 * KV_HEADS,
            KV_HEADS,
            DIM,
        );
        let options = SlotOptions {
            chunk: CHUNK,
            preallocate: 6,
            max_positions: None,
        };
        Self {
            cache: K::make(&spec, &options),
            device,
            before: start.clone(),
        }
    }

    fn apply(mut real: Self, after: &Model, op: Op) -> Self {
        match op {
            Op::Begin { rows, phase } => {
                let spans: Vec<RowSpan> = rows
                    .iter()
                    .map(|&(seq, len)| {
                        let start = real.before.len(seq) + real.before.staged(seq);
                        RowSpan {
                            seq: SeqId(seq),
                            start,
                            len,
                        }
                    })
                    .collect();
                if real.before.next == after.next {
                    assert!(
                        real.cache.begin(&spans, phase).is_err(),
                        "a second pass was opened"
                    );
                } else {
                    real.run(&spans, phase, after);
                }
            }
            Op::WrongStart { seq, off } => {
                let start = after.len(seq) + after.staged(seq) + off;
                let row = RowSpan {
                    seq: SeqId(seq),
                    start,
                    len: 1,
                };
                assert!(real.cache.begin(&[row], Phase::Verify).is_err());
            }
            Op::Commit { keep } => {
                let result = real.cache.commit(&keep);
                // The reference stays open iff the pass may not be committed.
                assert_eq!(result.is_ok(), after.open.is_none(), "{result:?}");
            }
            Op::CommitTooMuch => {
                let keep: Vec<usize> = match &after.open {
                    Some(open) => open.rows.iter().map(|(_, new)| new.len() + 1).collect(),
                    None => vec![0],
                };
                assert!(real.cache.commit(&keep).is_err());
            }
            Op::Rollback => real.cache.rollback(),
            Op::Evict(seq) => {
                real.cache.evict(SeqId(seq));
                assert_eq!(K::memory(&real.cache, SeqId(seq)).0, 0);
            }
            Op::Copy { from, to } => {
                let (from, to) = (SeqId(from), SeqId(to));
                let (a, b) = (real.cache.len(to), real.cache.len(from));
                if after.open.is_none() && a < b {
                    let segment = real.cache.export(from, a..b).expect("committed entries");
                    real.cache
                        .import(to, &segment)
                        .expect("it continues the sequence");
                }
            }
        }
        real.before = after.clone();
        real
    }

    fn check_invariants(real: &Self, model: &Model) {
        let mut held = 0;
        for seq in 0..4 {
            let id = SeqId(seq);
            assert_eq!(
                real.cache.len(id),
                model.len(seq),
                "length of sequence {seq}"
            );
            held += K::memory(&real.cache, id).0;
            let Some(content) = model.content.get(&seq).filter(|c| !c.is_empty()) else {
                continue;
            };
            let segment = real
                .cache
                .export(id, 0..content.len())
                .expect("all is committed");
            for (layer, (k, v)) in segment.layers.iter().enumerate() {
                assert_eq!(read(k), read(&filled(content, layer, 1.0, &real.device)));
                assert_eq!(read(v), read(&filled(content, layer, -1.0, &real.device)));
            }
        }
        // No chunk is lost and none is owned twice.
        let (_, free, each) = K::memory(&real.cache, SeqId(0));
        assert_eq!(held + free, real.cache.memory_bytes() / each);
    }
}

type WholeRectangle = Aligned<true>;
type RectangleOfThePass = Aligned<false>;

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn slots_behave_like_plain_vectors(sequential 1..40 => Real<Slots>);
    #[test]
    fn a_rectangle_behaves_like_plain_vectors(sequential 1..40 => Real<WholeRectangle>);
    #[test]
    fn a_rectangle_per_pass_behaves_like_plain_vectors(sequential 1..40 => Real<RectangleOfThePass>);
}
