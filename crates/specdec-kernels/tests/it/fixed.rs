//! Machines that fuse multiply-adds give the same bits, whatever their vectors: results against fixed fingerprints.

use burn::tensor::Tensor;
use specdec_kernels::{AttentionPass, RotaryPairing, SlotStore, rms_norm, rotary, swiglu};

use crate::oracle::{deal, device, numbers, tensor, values};

/// FNV-1a over the bits of the values.
fn fingerprint<const D: usize>(tensor: Tensor<D>) -> u32 {
    let values = values(tensor);
    let bytes = values
        .iter()
        .flat_map(|value| value.to_bits().to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Whether the kernels of this machine fuse multiply-adds.
fn fused() -> bool {
    #[cfg(target_arch = "x86_64")]
    let fused = is_x86_feature_detected!("avx512f")
        || is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
    #[cfg(not(target_arch = "x86_64"))]
    let fused = cfg!(target_arch = "aarch64");
    fused
}

#[test]
fn attention_has_the_same_bits_on_all_machines() {
    if !fused() {
        return;
    }
    let (heads, kv_heads) = (6, 2);
    let got = [(20, None), (64, Some(300))].map(|(dim, window)| {
        let (rows, chunks) = deal(&[(300, 5), (0, 40), (531, 9), (256, 1)], 16, 1);
        let mut store = SlotStore::new(1, kv_heads, dim, 16, &device()).unwrap();
        store.reserve(chunks);
        let held = |seed, len: usize| {
            let values = numbers(seed, len * kv_heads * dim);
            tensor(&values, [len, kv_heads, dim])
        };
        for (seed, row) in rows.iter().enumerate().filter(|(_, row)| row.start > 0) {
            let seed = 10 * seed as u64;
            let (k, v) = (held(seed, row.start), held(seed + 1, row.start));
            store.write(0, &row.table, 0, k, v).unwrap();
        }
        let tokens = 55;
        let pass = AttentionPass::new(rows, 16, &device())
            .unwrap()
            .window(window)
            .weights_of(vec![4, 20, 54])
            .unwrap();
        // Queries of a size that makes weights differ by orders of magnitude.
        let q: Vec<f32> = numbers(97, tokens * heads * dim)
            .iter()
            .map(|q| q * 8.0)
            .collect();
        let q = tensor(&q, [tokens, heads, dim]);
        let (k, v) = (held(98, tokens), held(99, tokens));
        let attended = store.attend(0, q, k, v, &pass).unwrap();
        [
            fingerprint(attended.out),
            fingerprint(attended.weights.unwrap()),
        ]
    });
    let expected = [[0xf7bf_c41f, 0x0471_8768], [0x507f_bd5b, 0x9e1f_af16]];
    assert_eq!(got, expected, "{got:08x?}");
}

#[test]
fn small_maps_have_the_same_bits_on_all_machines() {
    if !fused() {
        return;
    }
    let (rows, width) = (7, 300);
    let matrix = |seed| tensor(&numbers(seed, rows * width), [rows, width]);
    let norm = rms_norm(matrix(1), tensor(&numbers(2, width), [width]), 1e-6);
    let gate = swiglu(matrix(3) * 20.0, matrix(4));
    let half = |seed| tensor(&numbers(seed, rows * 32), [rows, 32]);
    let heads = tensor(&numbers(5, rows * 3 * 64), [rows, 3, 64]);
    let turned = rotary(heads, half(6), half(7), RotaryPairing::HalfSplit);
    let got = [fingerprint(norm), fingerprint(gate), fingerprint(turned)];
    assert_eq!(got, [0x38c8_4de9, 0x6dc9_f28d, 0xca2a_9f1e], "{got:08x?}");
}
