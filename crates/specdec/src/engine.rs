use crate::{Error, Generated, Generator, Options, Piece, Prompt, Result, TextEvent};
use async_channel::{Receiver, Sender};
use futures_core::Stream;
use specdec_core::{CancelToken, SeqId, Stats};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A generator on a thread of its own, shared by any number of threads or tasks: requests come in
/// at any time, all that are there are decoded together, and each gets its own stream.
///
/// Clones are handles to the same engine. When the last one is dropped the engine ends, after the
/// requests it has taken in.
#[derive(Debug, Clone)]
pub struct Engine {
    commands: Sender<Command>,
}

enum Command {
    Submit {
        prompt: Prompt,
        options: Box<Options>,
        updates: Sender<Update>,
    },
    Stats(Sender<Stats>),
}

enum Update {
    Piece(Piece),
    Finished(Box<Generated>),
    Failed(Error),
}

/// The answer to one request: an iterator of pieces that waits for each, or, by
/// [`into_async`](Self::into_async), a stream of them for any async runtime. Dropping it cancels the
/// request.
#[derive(Debug)]
pub struct EngineStream {
    updates: Pin<Box<Receiver<Update>>>,
    cancel: CancelToken,
    generated: Option<Generated>,
    /// Length of the text that came in pieces.
    told: usize,
    done: bool,
}

impl Engine {
    /// Starts an engine.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the system gives no thread.
    pub fn start(generator: Generator) -> Result<Self> {
        let (commands, inbox) = async_channel::unbounded();
        // The thread ends by itself when no handle is left and all work is done.
        std::thread::Builder::new()
            .name("specdec-engine".into())
            .spawn(move || {
                Worker {
                    generator,
                    inbox,
                    streams: HashMap::new(),
                }
                .work()
            })
            .map_err(|error| Error::Stopped(error.to_string()))?;
        Ok(Self { commands })
    }

    /// Asks for a continuation; returns at once. What is wrong with prompt or options is the
    /// stream's first item, and so is [`specdec_core::RequestError::Busy`].
    pub fn submit(&self, prompt: impl Into<Prompt>, options: &Options) -> EngineStream {
        let (updates, receiver) = async_channel::unbounded();
        let mut options = options.clone();
        // The stream's own: when it is dropped, others with the caller's token go on.
        let cancel = options.cancel.take().unwrap_or_default().child();
        options.cancel = Some(cancel.clone());
        let (prompt, options) = (prompt.into(), Box::new(options));
        // An engine that has ended drops the sender, which the stream then reports.
        self.commands
            .try_send(Command::Submit {
                prompt,
                options,
                updates,
            })
            .ok();
        EngineStream {
            updates: Box::pin(receiver),
            cancel,
            generated: None,
            told: 0,
            done: false,
        }
    }

    /// Asks for a continuation and waits for all of it.
    ///
    /// # Errors
    /// As [`Generator::generate`].
    pub fn generate(&self, prompt: impl Into<Prompt>, options: &Options) -> Result<Generated> {
        self.submit(prompt, options).wait()
    }

    /// Counts and times of everything so far; waits for the step that is under way.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn stats(&self) -> Result<Stats> {
        let (reply, answer) = async_channel::bounded(1);
        self.commands.try_send(Command::Stats(reply)).ok();
        answer.recv_blocking().map_err(|_| stopped())
    }
}

fn stopped() -> Error {
    Error::Stopped("its thread has ended".into())
}

impl EngineStream {
    /// Ends the request; what there is so far still comes.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits for the end and gives the whole result.
    ///
    /// # Errors
    /// As [`Generator::generate`].
    pub fn wait(mut self) -> Result<Generated> {
        for piece in self.by_ref() {
            piece?;
        }
        self.generated.take().ok_or_else(stopped)
    }

    /// The whole result, once the stream has ended by itself.
    pub fn into_generated(mut self) -> Option<Generated> {
        self.generated.take()
    }

    /// The same pieces for an async runtime.
    pub fn into_async(self) -> AsyncEngineStream {
        AsyncEngineStream(self)
    }

    /// Takes note of an update; the item it makes, if any.
    fn accept(&mut self, update: Option<Update>) -> Option<Result<Piece>> {
        match update {
            Some(Update::Piece(piece)) => {
                self.told += piece.text.len();
                Some(Ok(piece))
            }
            Some(Update::Finished(generated)) => {
                self.done = true;
                let rest = generated
                    .text
                    .get(self.told..)
                    .unwrap_or_default()
                    .to_owned();
                self.generated = Some(*generated);
                (!rest.is_empty()).then(|| {
                    Ok(Piece {
                        text: rest,
                        tokens: Vec::new(),
                    })
                })
            }
            Some(Update::Failed(error)) => {
                self.done = true;
                Some(Err(error))
            }
            None => {
                self.done = true;
                Some(Err(stopped()))
            }
        }
    }
}

impl Iterator for EngineStream {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            let update = self.updates.recv_blocking().ok();
            if let Some(item) = self.accept(update) {
                return Some(item);
            }
        }
        None
    }
}

/// The answer to one request as a [`futures_core::Stream`]. Dropping it cancels the request.
#[derive(Debug)]
pub struct AsyncEngineStream(EngineStream);

impl AsyncEngineStream {
    /// The whole result, once the stream has ended by itself.
    pub fn into_generated(self) -> Option<Generated> {
        self.0.into_generated()
    }
}

impl Stream for AsyncEngineStream {
    type Item = Result<Piece>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while !self.0.done {
            let Poll::Ready(update) = self.0.updates.as_mut().poll_next(cx) else {
                return Poll::Pending;
            };
            if let Some(item) = self.0.accept(update) {
                return Poll::Ready(Some(item));
            }
        }
        Poll::Ready(None)
    }
}

impl Drop for EngineStream {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// What runs on the engine's thread.
struct Worker {
    generator: Generator,
    inbox: Receiver<Command>,
    streams: HashMap<SeqId, Sender<Update>>,
}

impl Worker {
    /// Steps while there is work, and looks for commands between steps; waits for one when there is
    /// none. Ends when no handle is left and all work is done.
    fn work(mut self) {
        loop {
            if self.generator.is_idle() {
                match self.inbox.recv_blocking() {
                    Ok(command) => self.obey(command),
                    Err(_) => return,
                }
            }
            while let Ok(command) = self.inbox.try_recv() {
                self.obey(command);
            }
            self.step();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            // A reader that has gone does not want to know.
            Command::Stats(reply) => drop(reply.try_send(self.generator.stats().clone())),
            Command::Submit {
                prompt,
                options,
                updates,
            } => match self.generator.submit(prompt, &options) {
                Ok(seq) => drop(self.streams.insert(seq, updates)),
                Err(error) => drop(updates.try_send(Update::Failed(error))),
            },
        }
    }

    fn step(&mut self) {
        let events = match self.generator.step() {
            Ok(events) => events,
            Err(error) => {
                let error = Arc::new(error);
                for (seq, updates) in self.streams.drain() {
                    self.generator.cancel(seq).ok();
                    updates
                        .try_send(Update::Failed(Error::Step(Arc::clone(&error))))
                        .ok();
                }
                return;
            }
        };
        for event in events {
            let (seq, update) = match event {
                TextEvent::Piece { seq, piece } => (seq, Update::Piece(piece)),
                TextEvent::Finished { seq, generated } => {
                    (seq, Update::Finished(Box::new(generated)))
                }
                TextEvent::Failed { seq, error } => (seq, Update::Failed(error)),
            };
            let last = !matches!(update, Update::Piece(_));
            if let Some(updates) = self.streams.get(&seq) {
                updates.try_send(update).ok();
            }
            if last {
                self.streams.remove(&seq);
            }
        }
    }
}
