//! On the CPU backend a token's result has the same bits whatever is computed beside it.

use burn::tensor::Tensor;
use proptest::prelude::*;
use specdec_kernels::{
    AttentionPass, AttentionRow, BlockFormat, RotaryPairing, SlotStore, WeightMatrix, rms_norm,
    rotary, set_threads, swiglu,
};

use crate::oracle::{device, numbers, tensor, values};

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    values(tensor).iter().map(|value| value.to_bits()).collect()
}

/// Blocks of random bits, their f16 scales made finite by clearing the top exponent bit.
fn blocks(format: BlockFormat, seed: u64, count: usize) -> Vec<u8> {
    let noise = numbers(seed, count * format.block_bytes());
    let mut bytes: Vec<u8> = noise.iter().map(|x| ((x + 1.0) * 127.9) as u8).collect();
    for byte in &mut bytes {
        *byte &= 0xbf;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn products(
        outputs in 1usize..150,
        blocks_in in 1usize..3,
        rows in 1usize..70,
        which in 0usize..BlockFormat::ALL.len(),
        seed in 0u64..1000,
        threads in prop::sample::select(vec![1usize, 2, 4]),
    ) {
        let format = BlockFormat::ALL[which];
        let inputs = 256 * blocks_in;
        let data = match format {
            BlockFormat::F32 => numbers(seed, outputs * inputs).iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => blocks(format, seed, outputs * inputs / format.block_len()),
        };
        let weight = WeightMatrix::from_blocks(format, &data, outputs, inputs, &device()).unwrap();
        let x = numbers(seed + 1, rows * inputs);
        set_threads(threads);
        let together = bits(weight.matmul(tensor(&x, [rows, inputs])));
        // The same values as f32, in the same order: the quantised form changes nothing.
        let dense = WeightMatrix::from_f32(values(weight.to_dense()), outputs, inputs, &device()).unwrap();
        prop_assert_eq!(&bits(dense.matmul(tensor(&x, [rows, inputs]))), &together);
        set_threads(1);
        for (x, together) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
            prop_assert_eq!(&bits(weight.matmul(tensor(x, [1, inputs])))[..], together);
        }
        set_threads(0);
    }

    #[test]
    fn small_maps(rows in 1usize..70, width in 1usize..300, seed in 0u64..1000) {
        let (x, y) = (numbers(seed, rows * width), numbers(seed + 1, rows * width));
        let weight = numbers(seed + 2, width);
        let norm = |x: &[f32]| bits(rms_norm(tensor(x, [x.len() / width, width]), tensor(&weight, [width]), 1e-6));
        let gate = |x: &[f32], y: &[f32]| {
            let dims = [x.len() / width, width];
            bits(swiglu(tensor(x, dims), tensor(y, dims)))
        };
        let turn = |x: &[f32], y: &[f32]| {
            let pairs = width / 2;
            let angle = tensor(y, [y.len() / width, width]).slice([0..y.len() / width, 0..pairs]);
            let x = tensor(x, [x.len() / width, 1, width]);
            bits(rotary(x, angle.clone().cos(), angle.sin(), RotaryPairing::HalfSplit))
        };
        let (all_norm, all_gate) = (norm(&x), gate(&x, &y));
        let all_turned = if width > 1 { turn(&x, &y) } else { vec![] };
        for row in 0..rows {
            let own = row * width..(row + 1) * width;
            let (x, y) = (&x[own.clone()], &y[own.clone()]);
            prop_assert_eq!(&norm(x)[..], &all_norm[own.clone()]);
            prop_assert_eq!(&gate(x, y)[..], &all_gate[own.clone()]);
            if width > 1 {
                prop_assert_eq!(&turn(x, y)[..], &all_turned[own]);
            }
        }
    }
}

/// A sequence: its keys, values and queries at every position.
#[derive(Debug, Clone)]
struct Sequence {
    start: usize,
    len: usize,
    seed: u64,
    sparse: bool,
}

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const DIM: usize = 24;

impl Sequence {
    fn slice(&self, salt: u64, heads: usize, from: usize, len: usize) -> Tensor<3> {
        let all = numbers(self.seed * 10 + salt, (self.start + self.len) * heads * DIM);
        tensor(
            &all[from * heads * DIM..(from + len) * heads * DIM],
            [len, heads, DIM],
        )
    }
}

/// Runs the sequences as rows of one pass; returns each row's output and the weights of its last token.
fn pass(
    sequences: &[Sequence],
    (chunk, turn): (usize, usize),
    window: Option<usize>,
    threads: usize,
) -> Vec<(Vec<u32>, Vec<u32>)> {
    let lengths: Vec<_> = sequences.iter().map(|s| (s.start, s.len)).collect();
    let (rows, chunks) = crate::oracle::deal(&lengths, chunk, turn);
    let mut store = SlotStore::new(1, KV_HEADS, DIM, chunk, &device()).unwrap();
    store.reserve(chunks);
    set_threads(threads);
    for (sequence, row) in sequences.iter().zip(&rows) {
        if sequence.start > 0 {
            let held = |salt| sequence.slice(salt, KV_HEADS, 0, sequence.start);
            store.write(0, &row.table, 0, held(0), held(1)).unwrap();
        }
    }
    let new = |salt, heads| {
        let parts = sequences
            .iter()
            .map(|s| s.slice(salt, heads, s.start, s.len));
        Tensor::cat(parts.collect(), 0)
    };
    let mut last = Vec::new();
    let mut tokens = 0;
    for sequence in sequences {
        tokens += sequence.len;
        last.push(tokens - 1);
    }
    let ends = last.clone();
    let mut description = AttentionPass::new(rows.clone(), chunk, &device())
        .unwrap()
        .window(window);
    for (row, sequence) in sequences.iter().enumerate() {
        if sequence.sparse {
            let columns = (0..sequence.start as u32).filter(|c| c % 3 == 1).collect();
            description = description.keys(0, row, columns).unwrap();
            description = description
                .tail(row, sequence.start.saturating_sub(20))
                .unwrap();
        }
    }
    let description = description.weights_of(last).unwrap();
    let attended = store
        .attend(
            0,
            new(2, HEADS),
            new(0, KV_HEADS),
            new(1, KV_HEADS),
            &description,
        )
        .unwrap();
    let out = bits(attended.out);
    let weights = attended.weights.unwrap();
    let columns = weights.dims()[2];
    let weights = bits(weights);
    set_threads(0);
    let places = ends.iter().zip(sequences).enumerate();
    places
        .map(|(index, (&end, sequence))| {
            let width = HEADS * DIM;
            let out = out[(end + 1 - sequence.len) * width..(end + 1) * width].to_vec();
            let own = sequence.start + sequence.len;
            let heads = (0..KV_HEADS).flat_map(|head| {
                let row = (index * KV_HEADS + head) * columns;
                weights[row..row + own].to_vec()
            });
            (out, heads.collect())
        })
        .collect()
}

fn sequences() -> impl Strategy<Value = Vec<Sequence>> {
    let one = (0usize..600, 1usize..40, 0u64..1000, any::<bool>()).prop_map(
        |(start, len, seed, sparse)| Sequence {
            start,
            len,
            seed,
            sparse,
        },
    );
    prop::collection::vec(one, 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn attention(
        sequences in sequences(),
        chunk in 1usize..40,
        turn in 0usize..50,
        window in prop::option::of(1usize..500),
        threads in prop::sample::select(vec![1usize, 2, 4]),
    ) {
        let together = pass(&sequences, (chunk, turn), window, threads);
        for (sequence, (out, weights)) in sequences.iter().zip(&together) {
            // Alone, in other chunks, on one thread.
            let alone = pass(core::slice::from_ref(sequence), (16, 0), window, 1);
            prop_assert_eq!(&alone[0].0, out);
            prop_assert_eq!(&alone[0].1, weights);
            // One token at a time: a verify block equals plain steps.
            if !sequence.sparse {
                let middle = sequence.len / 2;
                let step = Sequence { start: sequence.start + middle, len: 1, ..sequence.clone() };
                let step = pass(&[step], (16, 3), window, 2);
                let width = HEADS * DIM;
                prop_assert_eq!(&step[0].0[..], &out[middle * width..(middle + 1) * width]);
            }
        }
    }
}

#[test]
fn what_a_neighbour_holds_does_not_matter() {
    let own = Sequence {
        start: 300,
        len: 5,
        seed: 1,
        sparse: false,
    };
    let other = |seed| Sequence {
        start: 77,
        len: 9,
        seed,
        sparse: false,
    };
    let first = pass(&[other(2), own.clone()], (16, 1), None, 2);
    let second = pass(&[other(3), own], (16, 1), None, 2);
    assert_eq!(first[1], second[1]);
    assert_ne!(first[0], second[0]);
}

#[test]
fn a_row_of_nans_poisons_nobody() {
    let (chunk, len) = (8, 20);
    let mut store = SlotStore::new(1, KV_HEADS, DIM, chunk, &device()).unwrap();
    store.reserve(8);
    let row = |table: Vec<u32>| AttentionRow {
        table,
        start: 0,
        len,
    };
    let rows = vec![row(vec![0, 2, 4]), row(vec![1, 3, 5])];
    let description = AttentionPass::new(rows, chunk, &device()).unwrap();
    let good = Sequence {
        start: 0,
        len,
        seed: 5,
        sparse: false,
    };
    let bad = Tensor::<3>::full([len, KV_HEADS, DIM], f32::NAN, &device());
    let k = Tensor::cat(vec![good.slice(0, KV_HEADS, 0, len), bad.clone()], 0);
    let v = Tensor::cat(vec![good.slice(1, KV_HEADS, 0, len), bad], 0);
    let q = good.slice(2, HEADS, 0, len);
    let q = Tensor::cat(vec![q.clone(), q], 0);
    let out = bits(store.attend(0, q, k, v, &description).unwrap().out);
    let alone = pass(&[good], (16, 0), None, 1);
    assert_eq!(alone[0].0[..], out[..len * HEADS * DIM]);
}
