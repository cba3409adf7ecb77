//! Field case I2: one set of weights, many threads.

use crate::tiny_pair::pair;
use specdec::{
    DeviceError, DraftLength, Drafting, Error, Generated, Generator, Model, Options, Prompt,
    TextStream,
};

#[test]
fn i2_types_cross_threads_and_shared_ones_are_shared() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<Generator>();
    send::<TextStream<'_>>();
    send::<Error>();
    sync::<Error>();
    send::<Model>();
    sync::<Model>();
    sync::<Options>();
    sync::<Generated>();
    sync::<DeviceError>();
}

#[test]
fn i2_four_threads_say_what_one_says() {
    let run = |thread: usize| -> Vec<String> {
        let (model, draft) = pair();
        let drafting = match thread % 2 {
            0 => Drafting::ngram(),
            _ => Drafting::Model(draft.clone()),
        };
        let mut generator = Generator::builder(model)
            .drafting(drafting)
            .draft_length(DraftLength::Fixed(4))
            .build()
            .expect("it fits");
        (0..10)
            .map(|i| {
                let prompt = Prompt::user(format!("Count from {} to nine.", ["one", "two"][i % 2]));
                let options = Options::max_new_tokens(12 + i)
                    .temperature(0.5)
                    .seed(i as u64);
                generator
                    .generate(prompt, &options)
                    .expect("a good prompt")
                    .text
            })
            .collect()
    };
    let serial = run(0);
    let together: Vec<Vec<String>> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..4)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        all.into_iter()
            .map(|thread| thread.join().expect("no thread panics"))
            .collect()
    });
    for texts in together {
        assert_eq!(texts, serial);
    }
}
