//! What all requests share.

use crate::error::ApiError;
use clap::Args;
use serde_json::{Value, json};
use specdec::{Engine, EngineStream, Model, Options, Prompt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits, and the name the model is served under.
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// The model's name in requests [default: the last part of --model]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Most requests at a time, waiting ones included; others are answered with 429
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) max_requests: u32,
    /// Most bytes of a request's body
    #[arg(long, default_value_t = 1 << 20)]
    pub(crate) max_body: usize,
    /// Most tokens of a prompt [default: what the model's context holds]
    #[arg(long)]
    pub(crate) max_prompt: Option<usize>,
    /// Most tokens that a request may ask for
    #[arg(long, default_value_t = 2048)]
    pub(crate) max_tokens: usize,
}

/// The engine, its model, and who is being served.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) model: Model,
    pub(crate) name: String,
    pub(crate) settings: Settings,
    pub(crate) started: u64,
    places: Arc<Semaphore>,
    served: AtomicU64,
}

/// A request that the engine has taken in; it keeps its place until it is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) stream: EngineStream,
    pub(crate) place: OwnedSemaphorePermit,
}

impl Server {
    pub(crate) fn new(engine: Engine, model: Model, path: &str, settings: Settings) -> Self {
        let last = Path::new(path).file_name().and_then(|last| last.to_str());
        let last = last.map(|last| last.strip_suffix(".gguf").unwrap_or(last));
        let name = settings.name.clone().or(last.map(str::to_owned));
        Self {
            engine,
            model,
            name: name.unwrap_or_else(|| path.to_owned()),
            places: Arc::new(Semaphore::new(settings.max_requests as usize)),
            settings,
            started: now(),
            served: AtomicU64::new(0),
        }
    }

    /// Takes a request in, or says why not.
    pub(crate) async fn start(
        self: &Arc<Self>,
        prompt: Prompt,
        options: Options,
    ) -> Result<Running, ApiError> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return Err(ApiError::busy(self.settings.max_requests as usize));
        };
        let server = Arc::clone(self);
        // Long prompts take a while to encode.
        let encoded = tokio::task::spawn_blocking(move || server.model.encode(&prompt)).await;
        let ids = encoded.map_err(|error| ApiError::internal(error.to_string()))??;
        let most = self
            .settings
            .max_prompt
            .unwrap_or(usize::MAX)
            .min(self.model.config().context);
        if ids.len() > most {
            return Err(ApiError::too_long(ids.len(), most));
        }
        self.served.fetch_add(1, Ordering::Relaxed);
        Ok(Running {
            stream: self.engine.submit(ids, &options),
            place,
        })
    }

    /// A name that no other answer of this process has.
    pub(crate) fn id(&self, kind: &str) -> String {
        let n = self.served.load(Ordering::Relaxed);
        format!("{kind}-{}-{n}-{:08x}", self.started, rand::random::<u32>())
    }

    /// Counts of everything so far.
    pub(crate) async fn counts(self: Arc<Self>) -> Result<Value, ApiError> {
        let engine = self.engine.clone();
        // It waits for the step under way.
        let stats = tokio::task::spawn_blocking(move || engine.stats()).await;
        let stats = stats.map_err(|error| ApiError::internal(error.to_string()))??;
        Ok(json!({
            "requests": self.served.load(Ordering::Relaxed),
            "running": self.settings.max_requests as usize - self.places.available_permits(),
            "rounds": stats.rounds,
            "emitted": stats.emitted,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "acceptance_length": stats.acceptance_length(),
            "tokens_per_second": stats.tokens_per_second(),
        }))
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH);
    passed.unwrap_or_default().as_secs()
}
