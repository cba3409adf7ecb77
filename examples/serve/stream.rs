//! An answer as server-sent events.

use crate::answer::Answer;
use crate::error::ApiError;
use crate::state::Running;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_lite::stream::{self, Stream, StreamExt};
use serde_json::Value;
use specdec::{AsyncEngineStream, Piece, Result};
use std::collections::VecDeque;
use std::convert::Infallible;
use tokio::sync::OwnedSemaphorePermit;

/// A request whose answer is being written. Dropping it, as happens when the reader goes away, cancels
/// the request and frees its place.
struct Writing {
    pieces: Option<AsyncEngineStream>,
    answer: Answer,
    usage: bool,
    queue: VecDeque<Event>,
    _place: OwnedSemaphorePermit,
}

/// Waits for the first piece, so that what is wrong with a request is an answer of its own.
pub(crate) async fn streamed(
    running: Running,
    answer: Answer,
    usage: bool,
) -> Result<Response, ApiError> {
    let mut pieces = running.stream.into_async();
    let first = pieces.next().await.transpose()?;
    let mut writing = Writing {
        pieces: Some(pieces),
        answer,
        usage,
        queue: VecDeque::new(),
        _place: running.place,
    };
    let opening = writing.answer.opening();
    writing.tell(opening);
    writing.take(first.map(Ok));
    Ok(Sse::new(events(writing))
        .keep_alive(KeepAlive::default())
        .into_response())
}

fn events(writing: Writing) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(writing, |mut writing| async move {
        while writing.queue.is_empty() {
            let next = writing.pieces.as_mut()?.next().await;
            writing.take(next);
        }
        let event = writing.queue.pop_front()?;
        Some((Ok(event), writing))
    })
}

impl Writing {
    fn tell(&mut self, chunk: Option<Value>) {
        let event = chunk.map(|chunk| Event::default().data(chunk.to_string()));
        self.queue.extend(event);
    }

    /// Takes note of a piece, of a failure, or of the end.
    fn take(&mut self, piece: Option<Result<Piece>>) {
        match piece {
            Some(Ok(piece)) => {
                let chunk = self.answer.piece(&piece);
                self.tell(chunk);
            }
            Some(Err(error)) => {
                self.pieces = None;
                self.tell(Some(ApiError::from(error).body()));
            }
            None => {
                let generated = self
                    .pieces
                    .take()
                    .and_then(AsyncEngineStream::into_generated);
                if let Some(generated) = generated {
                    self.tell(Some(self.answer.closing(&generated)));
                    let counts = self.usage.then(|| self.answer.counts(&generated));
                    self.tell(counts);
                }
                self.queue.push_back(Event::default().data("[DONE]"));
            }
        }
    }
}
