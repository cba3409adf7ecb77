//! One layer's attention of verify passes: read in place, and composed of tensor operations.

use super::decode::K;
use super::table::{Table, median, ms};
use burn::prelude::*;
use specdec::core::ModelSpec;
use specdec_kernels::{AttentionPass, AttentionRow, SlotStore};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const CHUNK: usize = 64;

/// Layers between two syncs.
const LAYERS: usize = 4;

/// Times of both ways for some rows that hold `context` columns each.
///
/// # Errors
/// When a pass does not fit its store.
pub fn measure(
    table: &mut Table,
    name: &str,
    spec: &ModelSpec,
    rows: usize,
    context: usize,
) -> Result<()> {
    let device = &spec.device;
    let chunks = (context + K + 1).div_ceil(CHUNK);
    let mut store = SlotStore::new(LAYERS, spec.kv_heads, spec.head_dim, CHUNK, device)?;
    store.reserve(rows * chunks);
    let row = |number: usize| AttentionRow {
        table: (number * chunks..(number + 1) * chunks)
            .map(|chunk| chunk as u32)
            .collect(),
        start: context,
        len: K + 1,
    };
    let pass = AttentionPass::new((0..rows).map(row).collect(), CHUNK, device)?;
    let new = |heads| Tensor::<3>::ones([rows * (K + 1), heads, spec.head_dim], device);
    let (q, k) = (new(spec.heads), new(spec.kv_heads));
    let mut time = |plain: bool| {
        let mut failed = None;
        let time = median(7, || {
            // What describes a pass is made anew, as in every step.
            let pass = pass.clone().plain(plain);
            device.sync().expect("the device answers");
            let started = Instant::now();
            let mut last = None;
            for layer in 0..LAYERS {
                match store.attend(layer, q.clone(), k.clone(), k.clone(), &pass) {
                    Ok(done) => last = Some(done.out),
                    Err(error) => failed = Some(error),
                }
            }
            device.sync().expect("the device answers");
            drop(last);
            started.elapsed() / LAYERS as u32
        });
        failed.map_or(Ok(time), Err)
    };
    let (composed, in_place): (Duration, Duration) = (time(true)?, time(false)?);
    let figure = format!(
        "{} read in place, {} composed: {:.2} times as long",
        ms(in_place),
        ms(composed),
        composed.as_secs_f64() / in_place.as_secs_f64()
    );
    table.row(
        "attention of a layer",
        name,
        format!(
            "{rows} rows of {} tokens, {context} tokens of context",
            K + 1
        ),
        figure,
    );
    Ok(())
}
