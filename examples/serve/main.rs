//! An HTTP server in OpenAI's format: completions and chats, whole or streamed, decoded together in one batch.
//!
//! `cargo run --release --example serve -- --bind 127.0.0.1:8080`

mod answer;
mod error;
mod fields;
mod logprobs;
mod routes;
mod state;
mod stream;
mod wanted;

use anyhow::{Context, Result};
use clap::Parser;
use specdec::{DraftLength, Engine, Generator};
use specdec_examples::ModelArgs;
use state::{Server, Settings};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Where to listen; port 0 takes a free one. There is no authentication: keep to loopback, or put
    /// something in front
    #[arg(long, default_value = "127.0.0.1:8080")]
    bind: SocketAddr,
    /// Tokens to draft at a time, by prompt look-up; 0 decodes plainly [default: what measured costs and
    /// acceptance make best]
    #[arg(long)]
    draft_length: Option<usize>,
    /// Most requests in a pass
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: u32,
    #[command(flatten)]
    settings: Settings,
    /// Seconds that running requests get to end after SIGINT or SIGTERM
    #[arg(long, default_value_t = 10)]
    grace: u64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let generator = Generator::builder(&model)
        .draft_length(
            args.draft_length
                .map_or_else(DraftLength::adaptive, DraftLength::Fixed),
        )
        .max_rows(args.batch as usize)
        .build()?;
    let server = Server::new(
        Engine::start(generator)?,
        model,
        &args.model.model,
        args.settings,
    );
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(run(
            Arc::new(server),
            args.bind,
            Duration::from_secs(args.grace),
        ))
}

async fn run(server: Arc<Server>, bind: SocketAddr, grace: Duration) -> Result<()> {
    let listener = tokio::net::TcpListener::bind(bind)
        .await
        .with_context(|| format!("cannot listen at {bind}"))?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        eprintln!("warning: {address} can be reached from outside, and anyone who does is served");
    }
    let signal = signal()?;
    println!("listening at http://{address}/v1");
    let (told, mut telling) = tokio::sync::watch::channel(false);
    let mut stopping = telling.clone();
    let serving =
        axum::serve(listener, routes::router(server)).with_graceful_shutdown(async move {
            // The sender lives as long as this function.
            telling.wait_for(|told| *told).await.ok();
        });
    tokio::spawn(async move {
        signal.await;
        eprintln!("stopping: no new requests are taken");
        told.send(true).ok();
    });
    let deadline = async {
        stopping.wait_for(|told| *told).await.ok();
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        ended = std::future::IntoFuture::into_future(serving) => ended?,
        // Leaving drops the connections, which cancels what they were waiting for.
        () = deadline => eprintln!("stopped after {} s with requests under way", grace.as_secs()),
    }
    Ok(())
}

/// Ends when the process is asked to end.
fn signal() -> Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    Ok(async move {
        let interrupt = tokio::signal::ctrl_c();
        #[cfg(unix)]
        tokio::select! {
            _ = interrupt => {}
            _ = terminate.recv() => {}
        }
        #[cfg(not(unix))]
        interrupt.await.ok();
    })
}
