//! The pitfalls of batch speculation that need several rows of an exact model.

use crate::world::{Rounds, Target, decoder, hash_lm, play, rounds, row, seq, share};
use specdec_core::{
    BuildError, Completion, Decoder, Draft, DraftContext, Drafter, FixedLength, ModelSpec, Request,
    Result, Token,
};
use specdec_testkit::VecCache;
use specdec_testkit::oracle::{Continuations, Counted, Traced};
use specdec_testkit::scripted::ScriptedDrafter;
use std::sync::Arc;

fn half_right(prompts: &[Vec<Token>]) -> ScriptedDrafter {
    let model = hash_lm(20);
    let known = prompts.iter().map(|p| (p.clone(), model.greedy(p, 40)));
    ScriptedDrafter::sometimes(Continuations::new(known), 20, 0.6, 4)
}

fn together(prompts: &[Vec<Token>], max_new: &[usize]) -> (Vec<Completion>, Vec<Rounds>) {
    let controller = Traced::new(FixedLength(3));
    let trace = controller.trace();
    let mut decoder = decoder(&share(hash_lm(20)), half_right(prompts), controller);
    for (prompt, max) in prompts.iter().zip(max_new) {
        let request = Request::new(prompt.clone()).max_new_tokens(*max);
        decoder.submit(request).expect("a good request");
    }
    let done = decoder.run().expect("decoding");
    let rounds = done.iter().map(|d| rounds(&trace.of(d.seq))).collect();
    (done, rounds)
}

fn tokens(done: &[Completion]) -> Vec<Vec<Token>> {
    done.iter().map(|d| d.tokens.clone()).collect()
}

fn prompt(len: usize) -> Vec<Token> {
    (0..len as Token)
        .map(|i| (i * i + 3 * len as Token) % 20)
        .collect()
}

#[test]
fn eqspec_c16_c18_rows_of_any_length_equal_their_solo_runs() {
    let prompts = [prompt(1), prompt(3), prompt(7), prompt(2)];
    let (done, traces) = together(&prompts, &[12; 4]);
    for (i, prompt) in prompts.iter().enumerate() {
        assert_eq!(done[i].tokens, hash_lm(20).greedy(prompt, 12), "row {i}");
        let (alone, alone_rounds) = together(&prompts[i..=i], &[12]);
        assert_eq!(alone[0].tokens, done[i].tokens);
        assert_eq!(
            alone_rounds[0], traces[i],
            "row {i} needs the rounds it needs alone"
        );
    }
}

#[test]
fn eqspec_c19_duplicates_and_permutations() {
    let (a, b) = (prompt(4), prompt(6));
    let (done, _) = together(&[a.clone(), a.clone(), b.clone()], &[10; 3]);
    assert_eq!(done[0].tokens, done[1].tokens);
    assert_ne!(done[0].tokens, done[2].tokens);
    let (turned, _) = together(&[b, a.clone(), a], &[10; 3]);
    let mut want = tokens(&done);
    want.rotate_right(1);
    assert_eq!(tokens(&turned), want);
}

/// C20: a finished row takes part in nothing; the last one goes on alone.
#[test]
fn eqspec_c20_rows_finish_one_at_a_time() {
    let rows = [row(5, 2, &[]), row(6, 5, &[]), row(7, 9, &[])];
    let target = Counted::new(crate::world::script(&rows));
    let calls = target.calls();
    let target: Target = share(target);
    let mut decoder = decoder(&target, crate::world::script_drafter(&rows), FixedLength(1));
    for row in &rows {
        let request = Request::new(row.prompt.clone()).max_new_tokens(row.max_new);
        decoder.submit(request).expect("a good request");
    }
    // One token of each prompt is prefilled, then blocks of an anchor and a draft each.
    let mut sizes = Vec::new();
    let mut before = 0;
    while !decoder.is_idle() {
        decoder.step().expect("decoding");
        sizes.push(calls.tokens() - before);
        before = calls.tokens();
    }
    assert_eq!(sizes, [3 + 6, 4, 1 + 2, 2, 1]);
}

#[test]
fn eqspec_c21_all_finish_at_once_and_nothing_to_do() {
    let rows = [row(5, 4, &[]), row(6, 4, &[])];
    assert!(
        play(&rows, FixedLength(3), &[])
            .iter()
            .all(|(_, rounds)| rounds.len() == 1)
    );
    let mut empty = crate::world::plain_decoder(&share(hash_lm(20)));
    assert!(empty.is_idle());
    assert!(empty.step().expect("no work").is_empty());
    assert!(empty.run().expect("no work").is_empty());
}

#[test]
fn eqspec_c22_a_row_that_joins_in_mid_flight() {
    let prompts = [prompt(5), prompt(2), prompt(9)];
    let model = hash_lm(20);
    let mut decoder = decoder(&share(model.clone()), half_right(&prompts), FixedLength(3));
    for prompt in &prompts[..2] {
        let request = Request::new(prompt.clone()).max_new_tokens(15);
        decoder.submit(request).expect("a good request");
    }
    for _ in 0..3 {
        decoder.step().expect("decoding");
    }
    let request = Request::new(prompts[2].clone()).max_new_tokens(15);
    assert_eq!(decoder.submit(request).expect("a good request"), seq(2));
    for (done, prompt) in decoder.run().expect("decoding").iter().zip(&prompts) {
        assert_eq!(done.tokens, model.greedy(prompt, 15));
    }
}

/// Refuses every target whose vocabulary is not its own.
struct Foreign;

impl Drafter for Foreign {
    fn name(&self) -> &'static str {
        "foreign"
    }

    fn draft(&mut self, _: DraftContext<'_>) -> Result<Draft> {
        Ok(Draft::default())
    }

    fn check(&self, target: &ModelSpec) -> Result<(), BuildError> {
        Err(BuildError::Vocabulary(format!(
            "token 7 of {} is another word",
            target.vocab
        )))
    }
}

/// C27: a drafter that speaks of other tokens is refused when the decoder is built.
#[test]
fn eqspec_c27_a_drafter_of_another_vocabulary() {
    let model = hash_lm(20);
    let built = Decoder::builder(Arc::new(model.clone()))
        .cache(VecCache::new(specdec_core::TargetModel::spec(&model)))
        .drafter(Foreign)
        .build();
    let error = built.expect_err("another vocabulary").to_string();
    assert!(error.contains("token 7 of 20"), "{error}");
}
