//! The target on a device that another process hosts: Burn's remote device, over loopback.
//!
//! The example starts itself again as the host, connects, puts a model on the host's device and decodes
//! there, with drafts made here. The tokens are those of the same model on this process's own CPU.
//!
//! `cargo run --features remote --example remote` (in `benches/gpu`); `SPECDEC_DEVICE` says what is hosted.

use burn::prelude::Device;
use burn::remote::RemoteHost;
use burn::server::{RemoteServer, WebSocketTransport};
use specdec::core::{Completion, Decoder, Request, TargetModel};
use specdec::draft::NgramDrafter;
use specdec::models::LoadOptions;
use specdec::ragged::SlotCache;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    if std::env::args().any(|argument| argument == "--host") {
        return host();
    }
    let mut host = Command::new(std::env::current_exe()?)
        .arg("--host")
        .stdout(Stdio::piped())
        .spawn()?;
    let result = compare(BufReader::new(host.stdout.take().ok_or("no output")?));
    host.kill()?;
    host.wait()?;
    result
}

/// Serves this machine's device on a port of loopback, and prints the port.
fn host() -> Outcome<()> {
    let device = specdec_gpu::device()?.device;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    RemoteServer::new([device]).serve(WebSocketTransport::from_listener(listener))?;
    Ok(())
}

fn compare(mut host: impl BufRead) -> Outcome<()> {
    let mut port = String::new();
    host.read_line(&mut port)?;
    let there = RemoteHost::websocket(&format!("ws://127.0.0.1:{}", port.trim()));
    let there = Device::remote_options(&there).init()?;
    let (remote, local) = (decode(&there, true)?, decode(&Device::flex(), false)?);
    println!("there: {:?}\nhere:  {:?}", remote.tokens, local.tokens);
    println!(
        "{} of {} drafted tokens accepted",
        remote.stats.accepted, remote.stats.drafted
    );
    if remote.tokens != local.tokens {
        return Err("the tokens differ".into());
    }
    println!("equal");
    Ok(())
}

/// Continues a repetitive text with the repository's small model.
fn decode(device: &Device, drafts: bool) -> Outcome<Completion> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-pair/target");
    let model = specdec::models::open(folder, &LoadOptions::default(), device)?.model;
    let cache = SlotCache::new(model.spec())?;
    let mut builder = Decoder::builder(Arc::new(model)).cache(cache);
    if drafts {
        builder = builder.drafter(NgramDrafter::default());
    }
    Ok(builder
        .build()?
        .generate(Request::new([5, 9, 7].repeat(6)).max_new_tokens(24))?)
}
