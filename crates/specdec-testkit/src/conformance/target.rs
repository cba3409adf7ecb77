//! The target suite: every token's state is a function of its own row up to it, and of nothing else.

use super::report::{Report, Violation, distance, numbers};
use crate::seeded::Seeded;
use burn::prelude::*;
use specdec_core::{Attend, Block, Forward, KvCache, ModelSpec, Phase, SeqId, TargetModel, Token};

/// What a target promises beyond the trait.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct TargetPromises {
    /// Largest difference of a hidden state, a tap or a logit between two ways of computing it,
    /// relative to the largest number in it. 0 promises the same bits.
    pub tolerance: f32,
    /// Seed of the prompts.
    pub seed: u64,
}

impl Default for TargetPromises {
    /// A tolerance of 1e-4.
    fn default() -> Self {
        Self {
            tolerance: 1e-4,
            seed: 0,
        }
    }
}

/// Puts a target through its contract: `attend` once a layer with the right shapes; rows
/// independent of their neighbours and of their order; a prompt in pieces is the prompt in one; no
/// state between passes; nothing seen of later tokens; taps, logits and embeddings of the right
/// shape, the same whatever else is asked for.
///
/// `make_cache` makes an empty cache for the target, such as [`crate::VecCache::new`].
///
/// # Errors
/// The first [`Violation`].
pub fn target<C: KvCache>(
    target: &dyn TargetModel,
    make_cache: impl Fn(&ModelSpec) -> C,
) -> Result<Report, Violation> {
    target_promising(&TargetPromises::default(), target, make_cache)
}

/// As [`target()`], for a target that promises something else than the default.
///
/// # Errors
/// The first [`Violation`].
pub fn target_promising<C: KvCache>(
    promises: &TargetPromises,
    target: &dyn TargetModel,
    make_cache: impl Fn(&ModelSpec) -> C,
) -> Result<Report, Violation> {
    let mut suite = Suite {
        target,
        make_cache,
        tolerance: promises.tolerance,
        report: Report::new("target"),
    };
    suite.spec()?;
    let mut draws = Seeded::new(promises.seed);
    let vocab = target.spec().vocab;
    let most = target.spec().context.min(24);
    let rows: Vec<Vec<Token>> = [most, 1, most.min(7), most.min(7), most.min(13)]
        .iter()
        .map(|&n| (0..n).map(|_| draws.below(vocab) as Token).collect())
        .collect();
    let whole: Vec<States> = rows
        .iter()
        .map(|row| Ok(suite.passes(&[(row, row.len())])?.remove(0)))
        .collect::<Result<_, Violation>>()?;
    suite.again(&rows, &whole)?;
    suite.pieces(&rows, &whole)?;
    suite.neighbours(&rows, &whole)?;
    suite.later_tokens(&rows[0], &whole[0])?;
    suite.taps(&rows[0])?;
    suite.logits(&whole[0])?;
    suite.embeddings(&rows[0])?;
    Ok(suite.report)
}

/// Hidden states of one row, one entry a token, `[hidden]` each.
type States = Vec<Vec<f32>>;

struct Suite<'a, F> {
    target: &'a dyn TargetModel,
    make_cache: F,
    tolerance: f32,
    report: Report,
}

/// Watches how a model attends.
struct Watch<'a> {
    inner: Box<dyn Attend + 'a>,
    layers: Vec<usize>,
    shapes: Vec<[[usize; 3]; 3]>,
}

impl Attend for Watch<'_> {
    fn attend(
        &mut self,
        layer: usize,
        q: Tensor<3>,
        k: Tensor<3>,
        v: Tensor<3>,
    ) -> specdec_core::Result<Tensor<3>> {
        self.layers.push(layer);
        self.shapes.push([q.dims(), k.dims(), v.dims()]);
        self.inner.attend(layer, q, k, v)
    }
}

impl<C: KvCache, F: Fn(&ModelSpec) -> C> Suite<'_, F> {
    fn spec(&mut self) -> Result<(), Violation> {
        let spec = self.target.spec();
        let (h, g) = (spec.heads, spec.kv_heads);
        let sizes = [
            spec.vocab,
            spec.layers,
            h,
            g,
            spec.head_dim,
            spec.hidden,
            spec.context,
        ];
        self.report.check(
            "every size of the specification is 1 or more",
            !sizes.contains(&0),
            || format!("vocab, layers, heads, kv heads, head dim, hidden, context: {sizes:?}"),
        )?;
        self.report
            .check("the key/value heads divide the heads", h % g == 0, || {
                format!("{g} key/value heads, {h} heads")
            })?;
        let windows = spec.windows.len();
        let fits = windows == 0 || windows == spec.layers;
        self.report
            .check("windows are none, or one a layer", fits, || {
                format!("{windows} windows, {} layers", spec.layers)
            })
    }

    /// One pass, watched.
    fn forward(
        &mut self,
        cache: &mut C,
        block: &Block,
        taps: &[usize],
    ) -> Result<Forward, Violation> {
        let spec = self.target.spec();
        let t = block.len();
        let begun = cache.begin(block.rows(), Phase::Prefill);
        let inner = self
            .report
            .done("the cache takes the pass", begun, String::new)?;
        let mut watch = Watch {
            inner,
            layers: Vec::new(),
            shapes: Vec::new(),
        };
        let forward = self.target.forward(block, &mut watch, taps);
        let forward = self.report.done("a legal block is computed", forward, || {
            format!("{} rows, {t} tokens", block.rows().len())
        })?;
        let (mut layers, shapes) = (watch.layers, watch.shapes);
        layers.sort_unstable();
        let every = layers.iter().copied().eq(0..spec.layers);
        self.report
            .check("attend is called once for each layer", every, || {
                format!("called for {layers:?} of {} layers", spec.layers)
            })?;
        let (q, kv) = (
            [t, spec.heads, spec.head_dim],
            [t, spec.kv_heads, spec.head_dim],
        );
        let right = shapes.iter().all(|s| *s == [q, kv, kv]);
        self.report
            .check("q has shape [T, H, D], k and v [T, Hkv, D]", right, || {
                format!("{shapes:?} for q {q:?}, k and v {kv:?}")
            })?;
        let hidden = forward.hidden.dims();
        self.report.check(
            "hidden has shape [T, hidden]",
            hidden == [t, spec.hidden],
            || format!("{hidden:?} for {t} tokens of width {}", spec.hidden),
        )?;
        Ok(forward)
    }

    /// Runs the rows in one cache, each in pieces of the given length, packed with the others'.
    fn passes(&mut self, rows: &[(&Vec<Token>, usize)]) -> Result<Vec<States>, Violation> {
        let mut cache = (self.make_cache)(self.target.spec());
        let device = self.target.spec().device.clone();
        let mut states: Vec<States> = vec![Vec::new(); rows.len()];
        loop {
            let mut block = Block::new(&device);
            let mut who = Vec::new();
            for (i, (row, piece)) in rows.iter().enumerate() {
                let at = states[i].len();
                let to = (at + piece).min(row.len());
                if at < to {
                    block.push(SeqId(i as u64), at, &row[at..to]);
                    who.push(i);
                }
            }
            if block.is_empty() {
                return Ok(states);
            }
            let forward = self.forward(&mut cache, &block, &[])?;
            let keep: Vec<usize> = block.rows().iter().map(|row| row.len).collect();
            let committed = cache.commit(&keep);
            self.report
                .done("the cache keeps the pass", committed, String::new)?;
            let all = rows_of(forward.hidden);
            for (i, range) in who.into_iter().zip(block.ranges()) {
                states[i].extend_from_slice(&all[range]);
            }
        }
    }

    fn same(
        &mut self,
        check: &'static str,
        want: &[Vec<f32>],
        got: &[Vec<f32>],
        what: &str,
    ) -> Result<(), Violation> {
        let tolerance = self.tolerance;
        let n = (want.len(), got.len());
        self.report.check(check, n.0 == n.1, || {
            format!("{what}: {} states instead of {}", n.1, n.0)
        })?;
        for (position, (want, got)) in want.iter().zip(got).enumerate() {
            let size = want.iter().fold(1.0f32, |m, x| m.max(x.abs()));
            let d = distance(want, got) / size;
            self.report.check(check, d <= tolerance, || {
                format!("{what}: token {position} is off by {d} of its size (allowed: {tolerance})")
            })?;
        }
        Ok(())
    }

    fn again(&mut self, rows: &[Vec<Token>], whole: &[States]) -> Result<(), Violation> {
        for (row, want) in rows.iter().zip(whole) {
            let got = self.passes(&[(row, row.len())])?.remove(0);
            self.same(
                "nothing is kept between passes",
                want,
                &got,
                "the same pass again",
            )?;
            let finite = want.iter().flatten().all(|x| x.is_finite());
            self.report.check("hidden states are numbers", finite, || {
                format!("prompt {row:?}")
            })?;
        }
        Ok(())
    }

    fn pieces(&mut self, rows: &[Vec<Token>], whole: &[States]) -> Result<(), Violation> {
        for piece in [1, 3, 7] {
            for (row, want) in rows.iter().zip(whole) {
                let got = self.passes(&[(row, piece)])?.remove(0);
                let what = format!("{} tokens in pieces of {piece}", row.len());
                self.same("a prompt in pieces is the prompt in one", want, &got, &what)?;
            }
        }
        Ok(())
    }

    fn neighbours(&mut self, rows: &[Vec<Token>], whole: &[States]) -> Result<(), Violation> {
        let check = "a row does not depend on its neighbours";
        for pieces in [[99, 99, 99, 99, 99], [1, 1, 1, 1, 1], [5, 1, 2, 7, 3]] {
            for turn in [0, 2] {
                let order: Vec<usize> = (0..rows.len()).map(|i| (i + turn) % rows.len()).collect();
                let packed: Vec<_> = order.iter().map(|&i| (&rows[i], pieces[i])).collect();
                let got = self.passes(&packed)?;
                for (&i, got) in order.iter().zip(&got) {
                    let what = format!("row {i} of {} packed in pieces {pieces:?}", rows.len());
                    self.same(check, &whole[i], got, &what)?;
                }
            }
        }
        Ok(())
    }

    fn later_tokens(&mut self, row: &[Token], want: &States) -> Result<(), Violation> {
        let vocab = self.target.spec().vocab as Token;
        for cut in [1, row.len() / 2] {
            let mut other = row.to_vec();
            for token in &mut other[cut..] {
                *token = (*token + 1) % vocab;
            }
            let got = self.passes(&[(&other, other.len())])?.remove(0);
            let what = format!("tokens from {cut} on changed");
            let check = "nothing is seen of later tokens";
            self.same(check, &want[..cut], &got[..cut.min(got.len())], &what)?;
        }
        Ok(())
    }

    fn taps(&mut self, row: &[Token]) -> Result<(), Violation> {
        let spec = self.target.spec().clone();
        let block = Block::single(SeqId(0), 0, row, &spec.device);
        let mut ask = |taps: &[usize]| -> Result<(States, Vec<States>), Violation> {
            let mut cache = (self.make_cache)(&spec);
            let forward = self.forward(&mut cache, &block, taps)?;
            let n = forward.taps.len();
            self.report.check(
                "as many taps come as were asked for",
                n == taps.len(),
                || format!("{n} for {taps:?}"),
            )?;
            for (tap, tensor) in taps.iter().zip(&forward.taps) {
                let shape = tensor.dims();
                let right = shape == [row.len(), spec.hidden];
                self.report
                    .check("a tap has shape [T, hidden]", right, || {
                        format!("tap {tap} has shape {shape:?}")
                    })?;
            }
            let taps = forward.taps.into_iter().map(rows_of).collect();
            Ok((rows_of(forward.hidden), taps))
        };
        let (plain, _) = ask(&[])?;
        let last = spec.layers - 1;
        let (hidden, both) = ask(&[0, last])?;
        let (_, turned) = ask(&[last, 0])?;
        self.same(
            "taps change nothing",
            &plain,
            &hidden,
            "the final hidden state",
        )?;
        let check = "taps come in the order asked";
        self.same(check, &both[0], &turned[1], "tap 0")?;
        self.same(check, &both[1], &turned[0], "the last tap")
    }

    fn logits(&mut self, states: &States) -> Result<(), Violation> {
        let spec = self.target.spec().clone();
        let (n, width) = (states.len(), spec.hidden);
        let tensor = |rows: &[Vec<f32>]| {
            let data = TensorData::new(rows.concat(), [rows.len(), width]);
            Tensor::<2>::from_data(data, &spec.device)
        };
        let logits = self.target.logits(tensor(states));
        let [rows, columns] = logits.dims();
        let right = rows == n && columns >= spec.vocab;
        self.report.check(
            "logits have shape [N, V'], V' at least the vocabulary",
            right,
            || {
                format!(
                    "[{rows}, {columns}] for {n} states and a vocabulary of {}",
                    spec.vocab
                )
            },
        )?;
        let all = rows_of(logits);
        for i in [0, n / 2, n - 1] {
            let one = rows_of(self.target.logits(tensor(&states[i..=i])));
            let what = format!("state {i} of {n}");
            self.same(
                "logits of one state are those of many",
                &all[i..=i],
                &one,
                &what,
            )?;
        }
        let usable = all.iter().all(|row| {
            row[..spec.vocab].iter().any(|l| l.is_finite()) && !row.iter().any(|l| l.is_nan())
        });
        self.report.check("logits are numbers", usable, || {
            "a row has none, or NaN".into()
        })
    }

    fn embeddings(&mut self, row: &[Token]) -> Result<(), Violation> {
        let spec = self.target.spec().clone();
        let embed = |tokens: &[Token]| {
            let ids: Vec<i64> = tokens.iter().map(|&t| i64::from(t)).collect();
            let data = TensorData::new(ids, [tokens.len()]);
            self.target
                .embed(Tensor::<1, Int>::from_data(data, &spec.device))
        };
        let all = embed(row);
        let shape = all.dims();
        self.report.check(
            "embeddings have shape [N, hidden]",
            shape == [row.len(), spec.hidden],
            || {
                format!(
                    "{shape:?} for {} tokens of width {}",
                    row.len(),
                    spec.hidden
                )
            },
        )?;
        let mut turned = row.to_vec();
        turned.reverse();
        let mut back = rows_of(embed(&turned));
        back.reverse();
        self.same(
            "an embedding depends on its token alone",
            &rows_of(all),
            &back,
            "in reverse order",
        )
    }
}

/// A tensor `[N, W]` as one vector a row.
fn rows_of(tensor: Tensor<2>) -> Vec<Vec<f32>> {
    let width = tensor.dims()[1].max(1);
    numbers(tensor).chunks(width).map(<[f32]>::to_vec).collect()
}
