use super::Decoder;
use crate::{Error, Event, Result, SeqId};
use std::collections::VecDeque;

/// The events of one request. Each call of `next` steps the decoder as far as needed; other
/// sequences of the decoder move on too, and their events wait for the next
/// [`Decoder::step`]. Dropping it before the end cancels the request.
#[derive(Debug)]
pub struct Stream<'d> {
    decoder: &'d mut Decoder,
    seq: SeqId,
    ready: VecDeque<Event>,
    others: Vec<Event>,
    error: Option<Error>,
    done: bool,
}

impl<'d> Stream<'d> {
    pub(super) fn new(decoder: &'d mut Decoder, seq: SeqId) -> Self {
        Self {
            decoder,
            seq,
            ready: VecDeque::new(),
            others: Vec::new(),
            error: None,
            done: false,
        }
    }

    /// The sequence.
    pub fn seq(&self) -> SeqId {
        self.seq
    }

    fn sort(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            if event.seq() == self.seq {
                self.done |= !matches!(event, Event::Tokens { .. });
                self.ready.push_back(event);
            } else {
                self.others.push(event);
            }
        }
    }
}

impl Iterator for Stream<'_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if let Event::Failed { error, .. } = event {
                    return Some(Err(error));
                }
                return Some(Ok(event));
            }
            if let Some(error) = self.error.take() {
                return Some(Err(error));
            }
            if self.done {
                return None;
            }
            match self.decoder.step() {
                Ok(events) => self.sort(events),
                Err(error) => {
                    // What the step had emitted before it failed comes first.
                    let told: Vec<Event> = self.decoder.events.drain(..).collect();
                    self.sort(told);
                    if !self.done {
                        self.done = true;
                        self.decoder.remove(self.seq);
                    }
                    self.error = Some(error);
                }
            }
        }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.decoder.remove(self.seq);
        }
        for event in self.others.drain(..).rev() {
            self.decoder.events.push_front(event);
        }
    }
}
