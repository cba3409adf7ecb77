//! The output is that of plain decoding, whatever is selected.

use crate::hooks::Poison;
use crate::world::{Target, bare, device, plain, prompt, run, slots, transformer, vegas};
use proptest::prelude::*;
use specdec_core::{
    Coupled, Decoder, FixedLength, Greedy, KvCache, Request, SamplingParams, SelectiveCache, SeqId,
};
use specdec_ragged::{BatchCache, Strategy as Batching};
use specdec_testkit::HashLm;
use specdec_testkit::oracle::{difference, plain_run};
use specdec_testkit::strategies::{RowPlan, Scenario, scenarios};
use specdec_vegas::{
    Candidates, CheckedConfig, Collect, Everything, HeadSets, Random, Ranked, Score, Select,
    Streaming, Vegas, VegasConfig, VegasDrafter,
};
use std::collections::BTreeMap;
use std::sync::Arc;

fn decode(
    target: &Target,
    cache: impl KvCache + 'static,
    k: usize,
    request: Request,
) -> specdec_core::Completion {
    let mut decoder = Decoder::builder(Arc::clone(target))
        .cache(cache)
        .drafter(VegasDrafter::new())
        .controller(FixedLength(k))
        .build()
        .expect("the parts fit");
    decoder.generate(request).expect("decoding")
}

/// 200 tokens of a tiny transformer, greedy: few keys or many, short drafts or long, ranked or
/// garbage.
#[test]
fn t16_two_hundred_tokens() {
    let target = transformer();
    let request = || Request::new(prompt(40, 288)).max_new_tokens(200);
    let want = plain(&target, request());
    let mut accepted = BTreeMap::new();
    for ratio in [0.02, 0.1, 1.0] {
        for k in [1, 2, 6] {
            let got = decode(&target, vegas(&target, bare(ratio, 1)), k, request());
            assert_eq!(difference(&want, &got), None, "{ratio} {k}");
            accepted.insert((format!("{ratio}"), k), got.stats.acceptance_rate());
        }
    }
    let rule = Random::default();
    let garbage = Vegas::with_select(slots(target.spec()), target.spec(), bare(0.02, 1), rule);
    let got = decode(&target, garbage, 6, request());
    assert_eq!(difference(&want, &got), None, "garbage");
    let garbage = got.stats.acceptance_rate();
    // All keys: all accepted. Few: fewer. Garbage: fewer still.
    assert_eq!(accepted[&("1".into(), 6)], Some(1.0));
    assert!(accepted[&("0.1".into(), 6)] < Some(1.0), "{accepted:?}");
    assert!(
        garbage < accepted[&("0.1".into(), 6)],
        "{garbage:?} {accepted:?}"
    );
}

/// Which rule selects.
#[derive(Debug, Clone)]
enum Rule {
    Ranked,
    Streaming,
    Random,
    Everything,
    /// No candidate, one that is none, the first one, in turn.
    Odd,
}

#[derive(Debug)]
struct Odd;

impl Select for Odd {
    fn name(&self) -> &'static str {
        "odd"
    }

    fn needs_weights(&self) -> bool {
        true
    }

    fn select(&self, from: &Candidates<'_>) -> Option<Vec<u32>> {
        match (from.seq.0 as usize + from.layer + from.count) % 4 {
            0 => Some(Vec::new()),
            1 => Some(vec![from.count as u32, u32::MAX]),
            2 => Some(vec![0, 0]),
            _ => None,
        }
    }
}

/// How Vegas is set up, and how tokens are chosen.
#[derive(Debug, Clone)]
struct Setup {
    rule: Rule,
    config: VegasConfig,
    batching: Option<Batching>,
    temperature: f32,
    greedy_rule: bool,
    entropy: f64,
}

fn setups() -> impl proptest::strategy::Strategy<Value = Setup> {
    let rule = prop_oneof![
        3 => Just(Rule::Ranked),
        1 => Just(Rule::Streaming),
        1 => Just(Rule::Random),
        1 => Just(Rule::Everything),
        1 => Just(Rule::Odd),
    ];
    let collect = prop_oneof![Just(Collect::Ends), Just(Collect::Last), Just(Collect::All)];
    let shares = (
        prop_oneof![Just(0.01), Just(0.2), Just(0.6), Just(1.0)],
        1usize..6,
    );
    // Shares of logits are none.
    let coverage = prop::option::of(prop_oneof![Just(0.5), Just(1.0)]);
    let ranks = prop_oneof![
        2 => coverage.prop_map(|coverage| (Score::Weights, coverage)),
        1 => Just((Score::Logits, None)),
    ];
    let heads = prop_oneof![2 => Just(HeadSets::Shared), 1 => Just(HeadSets::PerKvHead)];
    let config = (
        shares,
        (0usize..3, 0usize..4),
        (ranks, collect, heads),
        (1usize..4, prop::option::of(0usize..6), 1usize..5),
    )
        .prop_map(
            |((ratio, min), (sinks, recent), (ranks, collect, heads), (plain, more, page))| {
                VegasConfig {
                    ratio,
                    min,
                    max: more.map(|more| min + more),
                    sinks,
                    recent,
                    coverage: ranks.1,
                    collect,
                    score: ranks.0,
                    heads,
                    page,
                    plain_refresh: plain,
                }
            },
        );
    let batching = prop_oneof![
        2 => Just(None),
        1 => Just(Some(Batching::Slots)),
        1 => Just(Some(Batching::EqSpec)),
    ];
    let tokens = (
        prop_oneof![Just(0.0f32), Just(0.9)],
        any::<bool>(),
        prop_oneof![2 => Just(9.0), 1 => Just(1.5)],
    );
    (rule, config, batching, tokens).prop_map(
        |(rule, config, batching, (temperature, greedy_rule, entropy))| Setup {
            rule,
            config,
            batching,
            temperature,
            greedy_rule,
            entropy,
        },
    )
}

fn with_rule<C: SelectiveCache + 'static>(
    inner: C,
    spec: &specdec_core::ModelSpec,
    setup: &Setup,
) -> Vegas<C> {
    let config: CheckedConfig = setup.config.clone().check().expect("a good config");
    match setup.rule {
        Rule::Ranked => Vegas::with_select(inner, spec, config.clone(), Ranked::new(&config)),
        Rule::Streaming => Vegas::with_select(inner, spec, config, Streaming { sinks: 1 }),
        Rule::Random => Vegas::with_select(inner, spec, config, Random { seed: 1 }),
        Rule::Everything => Vegas::with_select(inner, spec, config, Everything),
        Rule::Odd => Vegas::with_select(inner, spec, config, Odd),
    }
}

/// Decodes a scenario, rows arriving when they arrive.
fn play(
    scenario: &Scenario,
    request: impl Fn(&RowPlan) -> Request,
    mut decoder: Decoder,
) -> Vec<specdec_core::Completion> {
    let mut done = BTreeMap::new();
    let mut names: BTreeMap<SeqId, usize> = BTreeMap::new();
    for step in 0.. {
        for (i, row) in scenario.rows.iter().enumerate() {
            if row.arrives == step {
                let seq = decoder.submit(request(row)).expect("a good request");
                names.insert(seq, i);
            }
        }
        for event in decoder.step().expect("decoding") {
            if let specdec_core::Event::Finished(completion) = event {
                done.insert(names[&completion.seq], completion);
            }
        }
        if decoder.is_idle() && step > 4 {
            break;
        }
    }
    done.into_values().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Any pool, budget, rule, draft length, acceptance rule and cache beneath, dead slots poisoned.
    #[test]
    fn t16_speculative_is_plain(scenario in scenarios(), setup in setups()) {
        let fits = |row: &RowPlan| row.prompt.len() <= scenario.context;
        prop_assume!(scenario.rows.iter().all(fits));
        let target: Target = Arc::new(scenario.target(&device()));
        let request = |row: &RowPlan| {
            let mut params = SamplingParams::sampled(setup.temperature);
            params.seed = Some(scenario.seed);
            row.request().sampling(params)
        };
        let builder = Decoder::builder(Arc::clone(&target))
            .scheduler(scenario.scheduler())
            .drafter(VegasDrafter::new().with_entropy_limit(setup.entropy).expect("a good limit"))
            .controller(scenario.controller())
            .prefill_chunk(scenario.prefill_chunk);
        let spec = target.spec();
        let builder = match setup.batching {
            None => builder.cache(with_rule(Poison::slots(spec, 8), spec, &setup)),
            Some(batching) => {
                let cache: BatchCache = batching.cache(spec, &Default::default()).expect("good options");
                builder.cache(with_rule(cache, spec, &setup))
            }
        };
        let greedy = setup.greedy_rule && setup.temperature == 0.0;
        let builder = if greedy { builder.acceptance(Greedy) } else { builder.acceptance(Coupled) };
        let decoder = builder.build().expect("the parts fit");
        let got = play(&scenario, request, decoder);
        for (i, row) in scenario.rows.iter().enumerate() {
            let want = plain_run(&target, slots(spec), [request(row)]).expect("plain decoding").remove(0);
            prop_assert_eq!(difference(&want, &got[i]), None, "row {}", i);
        }
    }
}

/// Many rows of a model with hard attention and shared noise, under every rule.
#[test]
fn hash_lm_under_every_rule() {
    let model = HashLm::new(20, &device()).with_spread(6.0);
    let target: Target = Arc::new(model);
    let mut sampled = SamplingParams::sampled(0.9);
    sampled.seed = Some(8);
    let request = |i: usize, sampling: &SamplingParams| {
        let request = Request::new(prompt(1 + 17 * i, 20)).max_new_tokens(40);
        request.sampling(sampling.clone())
    };
    for rule in [
        Rule::Ranked,
        Rule::Streaming,
        Rule::Random,
        Rule::Everything,
        Rule::Odd,
    ] {
        for sampling in [SamplingParams::greedy(), sampled.clone()] {
            let setup = Setup {
                rule: rule.clone(),
                config: VegasConfig {
                    ratio: 0.2,
                    min: 8,
                    sinks: 2,
                    recent: 4,
                    ..VegasConfig::default()
                },
                batching: None,
                temperature: sampling.temperature,
                greedy_rule: false,
                entropy: f64::INFINITY,
            };
            let cache = with_rule(Poison::slots(target.spec(), 8), target.spec(), &setup);
            let meter = cache.meter();
            let mut decoder = Decoder::builder(Arc::clone(&target))
                .cache(cache)
                .drafter(VegasDrafter::new())
                .controller(FixedLength(4))
                .build()
                .expect("the parts fit");
            for i in 0..6 {
                decoder
                    .submit(request(i, &sampling))
                    .expect("a good request");
            }
            for (seq, got) in run(&mut decoder, |_| {}) {
                let want = plain(&target, request(seq.0 as usize, &sampling));
                assert_eq!(difference(&want, &got), None, "{rule:?}, row {seq}");
            }
            let share = meter.read().attended_share().expect("drafts");
            assert_eq!(
                share == 1.0,
                matches!(rule, Rule::Everything),
                "{rule:?}: {share}"
            );
        }
    }
}
