use crate::device;
use specdec_core::{
    Decoder, Error, FinishReason, FixedLength, Request, RowDraft, SeqId, TargetModel, Token,
};
use specdec_testkit::VecCache;
use specdec_testkit::conformance;
use specdec_testkit::oracle::{
    Calls, Continuations, Counted, Round, Traced, difference, plain_run,
};
use specdec_testkit::scripted::{
    FailingDrafter, FlakyTarget, Listed, Mistakes, ScriptedDrafter, ScriptedTarget,
};
use std::sync::Arc;

const PROMPTS: [(&[Token], &[Token]); 2] = [(&[5, 1], &[10, 11, 12, 13]), (&[6], &[20, 21])];

fn target() -> ScriptedTarget {
    ScriptedTarget::following(32, &device(), PROMPTS)
}

#[test]
fn a_scripted_target_keeps_the_contract_and_follows_its_script() {
    conformance::target(&target(), VecCache::new).unwrap_or_else(|v| panic!("{v}"));
    let target: Arc<dyn TargetModel> = Arc::new(target());
    let requests = [[5, 1].to_vec(), vec![6], vec![9]].map(|p| Request::new(p).max_new_tokens(5));
    let done = plain_run(&target, VecCache::new(target.spec()), requests).expect("plain decoding");
    let tokens: Vec<_> = done.iter().map(|d| d.tokens.clone()).collect();
    assert_eq!(
        tokens,
        [vec![10, 11, 12, 13, 0], vec![20, 21, 0, 0, 0], vec![0; 5]]
    );
    assert!(difference(&done[0], &done[0]).is_none());
    assert!(difference(&done[0], &done[1]).is_some_and(|d| d.contains("index 0")));
    let short = plain_run(
        &target,
        VecCache::new(target.spec()),
        [Request::new([5, 1]).max_new_tokens(5).end_tokens([0])],
    );
    let short = short.expect("plain decoding").remove(0);
    assert_eq!(short.finish, FinishReason::EndToken);
    assert!(difference(&done[0], &short).is_some_and(|d| d.contains("finish")));
}

#[test]
fn a_script_sees_position_newest_previous_and_first_token() {
    let target = ScriptedTarget::new(8, &device(), |seen| {
        assert_eq!(seen.first, 3);
        let expected = if seen.position == 0 {
            seen.token
        } else {
            seen.token.wrapping_sub(1) % 8
        };
        assert_eq!(seen.previous % 8, expected % 8);
        let mut logits = vec![0.0; 8];
        logits[(seen.token as usize + 1) % 8] = 1.0;
        logits
    });
    let target: Arc<dyn TargetModel> = Arc::new(target);
    let done = plain_run(
        &target,
        VecCache::new(target.spec()),
        [Request::new([3]).max_new_tokens(6)],
    );
    assert_eq!(done.expect("plain decoding")[0].tokens, [4, 5, 6, 7, 0, 1]);
}

fn known() -> Continuations {
    Continuations::new(PROMPTS.map(|(p, c)| (p.to_vec(), c.to_vec())))
}

fn run(drafter: impl specdec_core::Drafter + 'static, k: usize) -> (Vec<Token>, Vec<Round>, Calls) {
    let target = Counted::new(target());
    let calls = target.calls();
    let controller = Traced::new(FixedLength(k));
    let trace = controller.trace();
    let mut decoder = Decoder::builder(Arc::new(target.clone()))
        .cache(VecCache::new(target.spec()))
        .drafter(drafter)
        .controller(controller)
        .build()
        .expect("the parts fit");
    let done = decoder
        .generate(Request::new([5, 1]).max_new_tokens(4))
        .expect("decoding");
    (done.tokens, trace.of(SeqId(0)), calls)
}

#[test]
fn oracle_adversary_and_listed_draft_what_they_say() {
    let oracle = run(ScriptedDrafter::oracle(known()), 3);
    assert_eq!(oracle.0, [10, 11, 12, 13]);
    assert_eq!(oracle.1, [Round::new(3, 3, 4)]);
    // One pass for the prompt, one for the round.
    assert_eq!((oracle.2.passes(), oracle.2.tokens()), (2, 5));
    let adversary = run(ScriptedDrafter::adversary(known(), 32), 3);
    assert_eq!(adversary.0, oracle.0);
    let want: Vec<Round> = [(3, 0, 1), (2, 0, 1), (1, 0, 1), (0, 0, 1)]
        .map(Round::from)
        .into();
    assert_eq!(adversary.1, want);
    let some = run(ScriptedDrafter::wrong_at(known(), 32, [1]), 3);
    assert_eq!(some.1, [Round::new(3, 1, 2), Round::new(1, 1, 2)]);
    let listed = run(Listed::tokens([vec![10, 9], vec![12, 13, 14, 15, 16]]), 2);
    assert_eq!(listed.0, oracle.0);
    assert_eq!(listed.1, [Round::new(2, 1, 2), Round::new(1, 1, 2)]);
    let silent = run(Listed::new([vec![], vec![RowDraft::default(); 7]]), 2);
    assert_eq!(silent.0, oracle.0);
}

#[test]
fn sometimes_depends_on_the_place_alone() {
    let mistakes = |right| Mistakes::Sometimes { right, seed: 3 };
    let wrong = |right| {
        (0..1000)
            .filter(|&i| mistakes(right).wrong(&[1, 2], i))
            .count()
    };
    assert_eq!((wrong(1.0), wrong(0.0)), (0, 1000));
    assert!((240..360).contains(&wrong(0.7)), "{}", wrong(0.7));
    let places = |prompt: &[Token]| -> Vec<bool> {
        (0..64).map(|i| mistakes(0.5).wrong(prompt, i)).collect()
    };
    assert_eq!(places(&[1, 2]), places(&[1, 2]));
    assert_ne!(places(&[1, 2]), places(&[2, 1]));
}

#[test]
fn continuations_follow_only_what_they_know() {
    let known = known();
    assert_eq!(known.after(&[5, 1, 10], 2), [11, 12, 13]);
    assert_eq!(known.after(&[5, 1, 11], 2), [] as [Token; 0]);
    assert_eq!(known.after(&[5, 1, 10], 1), [] as [Token; 0]);
    assert_eq!(known.prompts().count(), 2);
}

#[test]
fn faults_come_when_scripted() {
    let target: Arc<dyn TargetModel> = Arc::new(FlakyTarget::new(target(), [1]));
    let drafter = FailingDrafter::at_drafts(ScriptedDrafter::oracle(known()), [0]);
    let mut decoder = Decoder::builder(Arc::clone(&target))
        .cache(VecCache::new(target.spec()))
        .drafter(drafter.and_observations([1]))
        .controller(FixedLength(1))
        .build()
        .expect("the parts fit");
    decoder
        .submit(Request::new([5, 1]).max_new_tokens(4))
        .expect("a good request");
    // The prompt's pass works, the draft fails.
    assert!(matches!(decoder.step(), Err(Error::Drafter(_))));
    // The verify pass fails.
    assert!(matches!(decoder.step(), Err(Error::Target(_))));
    // The verify pass works, the drafter fails to learn from it.
    assert!(matches!(decoder.step(), Err(Error::Drafter(_))));
    let done = decoder.run().expect("no fault is left");
    assert_eq!(done[0].tokens, [10, 11, 12, 13]);
}
