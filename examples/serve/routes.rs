//! Which address does what.

use crate::answer::Answer;
use crate::error::ApiError;
use crate::state::{Running, Server};
use crate::stream::streamed;
use crate::wanted::{Kind, Wanted};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_lite::StreamExt;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

type Shared = State<Arc<Server>>;

/// How long a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);

pub(crate) fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .route("/stats", get(stats))
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "there is nothing at this address"))
        .method_not_allowed_fallback(async || {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "this address does not take this method",
            )
        })
        .with_state(server)
}

async fn chat(State(server): Shared, request: Request) -> Result<Response, ApiError> {
    answer(server, Kind::Chat, request).await
}

async fn completion(State(server): Shared, request: Request) -> Result<Response, ApiError> {
    answer(server, Kind::Completion, request).await
}

async fn answer(server: Arc<Server>, kind: Kind, request: Request) -> Result<Response, ApiError> {
    let body = body(request, server.settings.max_body).await?;
    let wanted = Wanted::read(kind, &body, &server)?;
    drop(body);
    let running = server.start(wanted.prompt, wanted.options).await?;
    let answer = Answer::new(server, wanted.kind);
    if wanted.stream {
        return streamed(running, answer, wanted.stream_usage).await;
    }
    let Running { stream, place } = running;
    let mut pieces = stream.into_async();
    while let Some(piece) = pieces.next().await {
        piece?;
    }
    drop(place);
    let generated = pieces.into_generated();
    let generated = generated.ok_or_else(|| ApiError::internal("the engine has ended".into()))?;
    Ok(Json(answer.whole(&generated)).into_response())
}

/// The body of a request that says it is JSON, which a page of another site cannot send unasked.
async fn body(request: Request, most: usize) -> Result<Bytes, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
    if !kind
        .split(';')
        .next()
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    {
        let what = "the body must be of type application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
    }
    match tokio::time::timeout(BODY_TIME, whole(request.into_body(), most)).await {
        Ok(body) => body,
        Err(_) => {
            let what = format!("the body did not arrive within {} s", BODY_TIME.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, what))
        }
    }
}

async fn whole(body: Body, most: usize) -> Result<Bytes, ApiError> {
    to_bytes(body, most).await.map_err(|error| {
        let source = std::error::Error::source(&error);
        if source.is_some_and(|source| source.to_string().contains("length limit")) {
            let what = format!("the body has more than {most} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, what)
        } else {
            ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("the body cannot be read: {error}"),
            )
        }
    })
}

fn card(server: &Server) -> Value {
    json!({"id": server.name, "object": "model", "created": server.started, "owned_by": "specdec"})
}

async fn models(State(server): Shared) -> Json<Value> {
    Json(json!({"object": "list", "data": [card(&server)]}))
}

async fn model(State(server): Shared, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    if name == server.name {
        Ok(Json(card(&server)))
    } else {
        Err(ApiError::no_model(&name, &server.name))
    }
}

async fn stats(State(server): Shared) -> Result<Json<Value>, ApiError> {
    server.counts().await.map(Json)
}
