//! Distributions under rejection, where drafts come from bad keys.

use crate::world::{Target, bare, device, slots};
use specdec_core::sampling::{History, LogitRule, Penalties, probabilities};
use specdec_core::{
    Decoder, Draft, DraftContext, Drafter, FirstCome, FixedLength, KvCache, Proposal, Rejection,
    Request, Result, RowDraft, SamplingParams, Token,
    accept::{accept_probability, residual},
};
use specdec_testkit::HashLm;
use specdec_testkit::oracle::unlikely;
use specdec_vegas::{Everything, Random, Vegas, VegasDrafter};
use std::sync::Arc;

const PROMPT: [Token; 9] = [1, 0, 1, 1, 0, 0, 1, 0, 1];
const DRAWS: u64 = 3000;

fn model(vocab: usize) -> HashLm {
    HashLm::new(vocab, &device()).with_spread(2.0)
}

fn rule(params: &SamplingParams) -> Penalties {
    Penalties {
        repetition: params.repetition_penalty,
        presence: params.presence_penalty,
        frequency: params.frequency_penalty,
    }
}

/// The target's probabilities of the next token, after the rules.
fn next(model: &HashLm, content: &[Token], params: &SamplingParams) -> Vec<f64> {
    let mut logits = model.reference(content);
    rule(params).apply(History::new(content, PROMPT.len()), &mut logits);
    probabilities(&logits)
}

/// The target's probabilities of the next `n` tokens together.
fn joint(model: &HashLm, n: usize, params: &SamplingParams) -> Vec<f64> {
    let mut paths = vec![(PROMPT.to_vec(), 1.0)];
    for _ in 0..n {
        let grown = paths.into_iter().flat_map(|(content, p)| {
            let next = next(model, &content, params);
            let more = next.into_iter().zip(0..).map(move |(q, token)| {
                let mut content = content.clone();
                content.push(token);
                (content, p * q)
            });
            more.collect::<Vec<_>>()
        });
        paths = grown.collect();
    }
    paths.into_iter().map(|(_, p)| p).collect()
}

/// How often each path of `n` tokens comes, over many seeds.
fn counts(
    model: &HashLm,
    cache: impl KvCache + 'static,
    drafter: impl Drafter + 'static,
    (n, params): (usize, &SamplingParams),
) -> (Vec<u64>, f64) {
    let mut decoder = Decoder::builder(Arc::new(model.clone()))
        .cache(cache)
        .drafter(drafter)
        .controller(FixedLength(n))
        .scheduler(FirstCome { max_rows: 500 })
        .acceptance(Rejection)
        .prefill_chunk(5000)
        .build()
        .expect("the parts fit");
    for seed in 0..DRAWS {
        let mut params = params.clone();
        params.seed = Some(seed);
        let request = Request::new(PROMPT).max_new_tokens(n + 1).sampling(params);
        decoder.submit(request).expect("a good request");
    }
    let vocab = (model.reference(&PROMPT).len()) as u64;
    let mut counts = vec![0; (vocab.pow(n as u32)) as usize];
    for done in decoder.run().expect("decoding") {
        let path = done.tokens[..n].iter();
        counts[path.fold(0, |at, &token| at * vocab + u64::from(token)) as usize] += 1;
    }
    let rate = decoder.stats().acceptance_rate().expect("drafts");
    (counts, rate)
}

fn garbage(model: &HashLm) -> Vegas<specdec_ragged::SlotCache> {
    let target: Target = Arc::new(model.clone());
    Vegas::with_select(
        slots(target.spec()),
        target.spec(),
        bare(0.1, 1),
        Random::default(),
    )
}

fn dense(model: &HashLm) -> Vegas<specdec_ragged::SlotCache> {
    let target: Target = Arc::new(model.clone());
    Vegas::with_select(
        slots(target.spec()),
        target.spec(),
        bare(1.0, 1),
        Everything,
    )
}

/// Drops the draft at the first token it does not like, after it was drawn.
struct LookThenDrop(VegasDrafter);

impl Drafter for LookThenDrop {
    fn name(&self) -> &'static str {
        "look then drop"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let mut draft = self.0.draft(cx)?;
        for row in &mut draft.rows {
            if row.tokens.first() == Some(&1) {
                *row = RowDraft::default();
            }
        }
        Ok(draft)
    }
}

/// Stopping by the entropy of a distribution, before a token is drawn from it, changes nothing;
/// dropping a draft because of the token does.
#[test]
fn t14_stopping_before_the_token_is_drawn() {
    let model = model(2);
    let params = SamplingParams::sampled(1.0);
    let p = joint(&model, 3, &params);
    // Entropies of the first three places lie between these, so that some drafts stop and some not.
    let mut entropies: Vec<f64> = [
        vec![],
        vec![0],
        vec![1],
        vec![0, 0],
        vec![0, 1],
        vec![1, 0],
        vec![1, 1],
    ]
    .into_iter()
    .map(|more: Vec<Token>| {
        let p = next(&model, &[&PROMPT[..], &more].concat(), &params);
        p.iter().map(|p| -p * p.ln()).sum()
    })
    .collect();
    entropies.sort_by(f64::total_cmp);
    let mut rates = Vec::new();
    for limit in [
        0.0,
        (entropies[2] + entropies[3]) / 2.0,
        (entropies[4] + entropies[5]) / 2.0,
        1.0,
    ] {
        let drafter = VegasDrafter::new()
            .with_entropy_limit(limit)
            .expect("a good limit");
        let cache = dense(&model);
        let mut decoder = Decoder::builder(Arc::new(model.clone()))
            .cache(cache)
            .drafter(drafter)
            .controller(FixedLength(3))
            .scheduler(FirstCome { max_rows: 500 })
            .acceptance(Rejection)
            .prefill_chunk(5000)
            .build()
            .expect("the parts fit");
        let mut counts = vec![0; 8];
        for seed in 0..DRAWS {
            let mut params = params.clone();
            params.seed = Some(seed);
            let request = Request::new(PROMPT).max_new_tokens(4).sampling(params);
            decoder.submit(request).expect("a good request");
        }
        for done in decoder.run().expect("decoding") {
            let path = done.tokens[..3].iter().fold(0, |at, &token| at * 2 + token);
            counts[path as usize] += 1;
        }
        assert_eq!(unlikely(&counts, &p), None, "limit {limit}");
        rates.push(decoder.stats().drafted);
    }
    assert_eq!(rates[0], 0, "nothing is certain");
    assert!(
        rates.is_sorted() && rates[1] < rates[2] && rates[2] < rates[3],
        "{rates:?}"
    );
    // The control.
    let (counts, _) = counts(
        &model,
        dense(&model),
        LookThenDrop(VegasDrafter::new()),
        (3, &params),
    );
    assert!(unlikely(&counts, &p).is_some());
}

#[test]
fn t15_rejection_keeps_the_distribution() {
    let (p, q) = ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3]);
    let accepted: f64 = (0..3).map(|t| q[t] * accept_probability(p[t], q[t])).sum();
    assert!((accepted - 0.7f64).abs() < 1e-12);
    assert_eq!(residual(&p, |t| q[t as usize]), [1.0, 0.0, 0.0]);
    for vocab in [2, 4] {
        let model = model(vocab);
        let params = SamplingParams::sampled(1.0);
        let (counts, rate) = counts(&model, garbage(&model), VegasDrafter::new(), (2, &params));
        assert_eq!(unlikely(&counts, &joint(&model, 2, &params)), None);
        assert!(rate < 0.97, "keys are bad, and {rate} was accepted");
    }
}

/// States for q what it would be without the rules of the request.
struct Misstated(VegasDrafter, HashLm);

impl Drafter for Misstated {
    fn name(&self) -> &'static str {
        "misstated"
    }

    fn draft(&mut self, cx: DraftContext<'_>) -> Result<Draft> {
        let contents: Vec<Vec<Token>> = cx.rows.iter().map(|row| row.tokens.to_vec()).collect();
        let mut draft = self.0.draft(cx)?;
        for (row, content) in draft.rows.iter_mut().zip(contents) {
            let q = (0..row.tokens.len()).map(|i| {
                let content = [&content[..], &row.tokens[..i]].concat();
                let p = probabilities(&self.1.reference(&content));
                p.into_iter().map(|p| p as f32).collect()
            });
            row.proposal = Proposal::Dense(q.collect());
        }
        Ok(draft)
    }
}

/// The q of a draft has the request's penalties in it.
#[test]
fn t26_sampling_with_penalties() {
    let model = model(4);
    let mut params = SamplingParams::sampled(1.0);
    params.repetition_penalty = 1.3;
    params.presence_penalty = 0.4;
    let p = joint(&model, 2, &params);
    for cache in [garbage(&model), dense(&model)] {
        let (counts, _) = counts(&model, cache, VegasDrafter::new(), (2, &params));
        assert_eq!(unlikely(&counts, &p), None);
    }
    // The penalties matter, and so does stating them.
    let (plain, _) = counts(
        &model,
        dense(&model),
        VegasDrafter::new(),
        (2, &SamplingParams::sampled(1.0)),
    );
    assert!(unlikely(&plain, &p).is_some());
    let misstated = Misstated(VegasDrafter::new(), model.clone());
    let (wrong, _) = counts(&model, dense(&model), misstated, (2, &params));
    assert!(unlikely(&wrong, &p).is_some());
}
