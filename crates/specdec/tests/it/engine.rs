//! The engine: requests from several threads at any time, each with its own stream.

use crate::tiny_pair::pair;
use futures_lite::future;
use specdec::core::{CancelToken, FinishReason, RequestError};
use specdec::ragged::SlotOptions;
use specdec::{DraftLength, Drafting, Engine, Error, Generator, Options, Prompt};
use std::sync::Barrier;

fn prompt(i: usize) -> Prompt {
    let names = ["Mia", "Leo", "Ruby", "Max", "Zoe"];
    let animals = ["fox", "owl", "rabbit", "bear"];
    let (animal, name) = (animals[i % animals.len()], names[i % names.len()]);
    Prompt::user(format!("Tell me a story about a {animal} named {name}."))
}

fn options(i: usize) -> Options {
    let options = Options::max_new_tokens(30 + 5 * (i % 4)).seed(i as u64);
    if i.is_multiple_of(3) {
        options
    } else {
        options.temperature(0.7)
    }
}

fn alone(i: usize) -> String {
    let mut generator = Generator::builder(&pair().0)
        .plain()
        .build()
        .expect("it fits");
    generator
        .generate(prompt(i), &options(i))
        .expect("a good prompt")
        .text
}

fn engine() -> Engine {
    let generator = Generator::builder(&pair().0)
        .drafting(Drafting::Model(pair().1.clone()))
        .draft_length(DraftLength::Fixed(4))
        .max_rows(3)
        .memory(SlotOptions {
            max_positions: Some(400),
            ..SlotOptions::default()
        })
        .build()
        .expect("it fits");
    Engine::start(generator).expect("a thread")
}

/// Every request, from whichever thread and beside whatever else, gives what it gives alone; more
/// requests than rows, and a limit on memory.
#[test]
fn requests_from_several_threads_give_what_they_give_alone() {
    let engine = engine();
    let start = Barrier::new(4);
    let texts: Vec<(usize, String, String)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (engine, start) = (engine.clone(), &start);
                scope.spawn(move || {
                    start.wait();
                    let numbers: Vec<usize> = (0..4).map(|i| thread * 4 + i).collect();
                    let streams: Vec<_> = numbers
                        .iter()
                        .map(|&i| engine.submit(prompt(i), &options(i)))
                        .collect();
                    numbers
                        .into_iter()
                        .zip(streams)
                        .map(|(i, mut stream)| {
                            let pieces = stream.by_ref().map(|p| p.expect("no failure").text);
                            let joined = pieces.collect::<String>();
                            let done = stream.into_generated().expect("it has ended");
                            (i, joined, done.text)
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().expect("no panic"))
            .collect()
    });
    assert_eq!(texts.len(), 16);
    for (i, joined, text) in texts {
        assert_eq!(joined, text, "request {i}");
        assert_eq!(text, alone(i), "request {i}");
    }
    assert!(engine.stats().expect("it runs").accepted > 0);
}

/// The same streams under a future, without any runtime.
#[test]
fn a_stream_is_an_async_stream() {
    let engine = engine();
    let (a, b) = future::block_on(async {
        let text = |i| {
            let mut stream = engine.submit(prompt(i), &options(i)).into_async();
            async move {
                let mut text = String::new();
                while let Some(piece) = futures_lite::StreamExt::next(&mut stream).await {
                    text.push_str(&piece.expect("no failure").text);
                }
                text
            }
        };
        future::zip(text(1), text(2)).await
    });
    assert_eq!((a, b), (alone(1), alone(2)));
}

/// Refusals are the stream's first item; the others do not notice.
#[test]
fn refusals_come_through_the_stream() {
    let generator = Generator::builder(&pair().0)
        .max_sequences(1)
        .build()
        .expect("it fits");
    let engine = Engine::start(generator).expect("a thread");
    let error = engine
        .generate(Prompt::Tokens(vec![]), &Options::default())
        .expect_err("empty");
    assert!(error.to_string().contains("empty"), "{error}");
    let mut first = engine.submit(prompt(0), &Options::max_new_tokens(300));
    first.next().expect("it goes on").expect("no failure");
    let busy = engine
        .generate(prompt(1), &options(1))
        .expect_err("one is taken");
    assert!(
        matches!(
            &busy,
            Error::Decode(specdec::core::Error::Request(RequestError::Busy {
                limit: 1,
                ..
            }))
        ),
        "{busy}"
    );
    drop(first);
    // The place is free again after the step that notices.
    let mut tries = 0;
    loop {
        match engine.generate(prompt(1), &options(1)) {
            Ok(done) => break assert_eq!(done.text, alone(1)),
            Err(error) => assert!(tries < 10_000, "{error}"),
        }
        tries += 1;
        std::thread::yield_now();
    }
}

/// Cancelling by the stream, by the request's token, by dropping; and dropping the engine lets what
/// it has taken in come to its end.
#[test]
fn ends_of_streams_and_of_the_engine() {
    let engine = engine();
    let mut stream = engine.submit(prompt(0), &Options::max_new_tokens(400));
    stream.next().expect("it goes on").expect("no failure");
    stream.cancel();
    let done = stream.wait().expect("cancelled, not failed");
    assert_eq!(done.finish, FinishReason::Cancelled);
    assert!(!done.tokens.is_empty());

    let token = CancelToken::new();
    token.cancel();
    let options_with = Options {
        cancel: Some(token),
        ..options(1)
    };
    let done = engine
        .generate(prompt(1), &options_with)
        .expect("cancelled, not failed");
    assert_eq!(
        (done.finish, done.tokens.len()),
        (FinishReason::Cancelled, 0)
    );

    drop(engine.submit(prompt(2), &options(2)));
    let last = engine.submit(prompt(4), &options(4));
    drop(engine);
    assert_eq!(last.wait().expect("it comes to its end").text, alone(4));
}

/// A request that ends, or is dropped, leaves the others with the same token alone; the token ends them all.
#[test]
fn a_token_for_many_requests_ends_none_by_itself() {
    let engine = engine();
    let token = CancelToken::new();
    let with_token = |i: usize| {
        let mut options = options(i);
        options.cancel = Some(token.clone());
        options
    };
    for i in 0..2 {
        let done = engine
            .generate(prompt(i), &with_token(i))
            .expect("a good prompt");
        assert_eq!(done.text, alone(i));
    }
    drop(engine.submit(prompt(2), &with_token(2)));
    let done = engine
        .generate(prompt(3), &with_token(3))
        .expect("a good prompt");
    assert_eq!(done.text, alone(3));
    assert!(!token.is_cancelled());
    token.cancel();
    let done = engine
        .generate(prompt(4), &with_token(4))
        .expect("a good prompt");
    assert_eq!(
        (done.finish, done.tokens.len()),
        (FinishReason::Cancelled, 0)
    );
}
