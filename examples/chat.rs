//! An interactive chat that keeps its turns. An empty line or end of input ends it.
//!
//! `cargo run --release --example chat`

use anyhow::Result;
use clap::Parser;
use specdec::prelude::*;
use specdec_examples::ModelArgs;
use std::io::{BufRead, Write};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Words before the first turn
    #[arg(long)]
    system: Option<String>,
    /// 0 takes the best token always
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 400)]
    max_new: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = args.model.open()?;
    let mut generator = Generator::builder(&model).build()?;
    let options = Options::max_new_tokens(args.max_new).temperature(args.temperature);
    let mut turns: Vec<Message> = args.system.into_iter().map(Message::system).collect();
    let mut lines = std::io::stdin().lock().lines();
    loop {
        print!("> ");
        std::io::stdout().flush()?;
        let Some(line) = lines.next().transpose()?.filter(|l| !l.trim().is_empty()) else {
            break;
        };
        turns.push(Message::user(line));
        let mut answer = String::new();
        let mut stream = generator.stream(turns.as_slice(), &options)?;
        for piece in stream.by_ref() {
            let piece = piece?;
            print!("{}", piece.text);
            std::io::stdout().flush()?;
            answer.push_str(&piece.text);
        }
        let speed = stream
            .into_generated()
            .and_then(|g| Some((g.stats.tokens_per_second()?, g.stats.acceptance_length()?)));
        println!();
        if let Some((speed, length)) = speed {
            println!("  [{speed:.0} tokens/s, {length:.2} tokens a pass]");
        }
        turns.push(Message::assistant(answer));
    }
    Ok(())
}
