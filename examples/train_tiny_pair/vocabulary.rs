//! A byte-level BPE vocabulary of the texts, and batches of their tokens.

use crate::corpus::{BEGIN, Corpus, END, MESSAGE};
use anyhow::{Result, anyhow};
use burn::prelude::*;
use serde_json::{Value, json};
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    Tokenizer, TokenizerImpl,
};

const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
    message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\n' }}{% endif %}";

type Trained = TokenizerImpl<
    BPE,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

pub struct Vocabulary {
    tokenizer: Tokenizer,
    json: String,
}

impl Vocabulary {
    /// A vocabulary of `size` entries: three special tokens, 256 bytes, and merges.
    pub fn train(size: usize, documents: impl Iterator<Item = String>) -> Result<Self> {
        let specials = [BEGIN, MESSAGE, END];
        let mut trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(size)
            .special_tokens(specials.map(|text| AddedToken::from(text, true)).to_vec())
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        let texts: Vec<String> = documents
            .map(|text| {
                specials
                    .iter()
                    .fold(text, |text, special| text.replace(special, "\n"))
            })
            .collect();
        let bytes = ByteLevel::new(false, false, true);
        let mut trained = Trained::new(BPE::default());
        trained
            .with_pre_tokenizer(Some(bytes))
            .with_decoder(Some(bytes));
        trained
            .train(&mut trainer, texts.into_iter())
            .map_err(|error| anyhow!(error))?;
        let json = trained.to_string(false).map_err(|error| anyhow!(error))?;
        let tokenizer = json.parse::<Tokenizer>().map_err(|error| anyhow!(error))?;
        anyhow::ensure!(
            tokenizer.get_vocab_size(true) == size,
            "too few texts for {size} entries"
        );
        Ok(Self { tokenizer, json })
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self
            .tokenizer
            .encode_fast(text, false)
            .map_err(|error| anyhow!(error))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn id(&self, text: &str) -> Result<u32> {
        self.tokenizer
            .token_to_id(text)
            .ok_or_else(|| anyhow!("{text} is no token"))
    }

    /// The ids of the tokens that begin a text and end a message.
    pub fn ends(&self) -> Result<(u32, u32)> {
        Ok((self.id(BEGIN)?, self.id(END)?))
    }

    /// The files of a model's folder that are about text, by name.
    pub fn files(&self) -> Result<Vec<(&'static str, String)>> {
        let (begin, end) = self.ends()?;
        let pretty = |value: Value| serde_json::to_string_pretty(&value).map(|text| text + "\n");
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": true,
            "bos_token": BEGIN,
            "eos_token": END,
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": false,
            "model_max_length": crate::model::CONTEXT,
        });
        let generation = json!({ "bos_token_id": begin, "eos_token_id": [begin, end] });
        Ok(vec![
            ("tokenizer.json", self.json.clone() + "\n"),
            ("tokenizer_config.json", pretty(config)?),
            ("generation_config.json", pretty(generation)?),
        ])
    }
}

/// Batches of tokens, each row beginning with a document and filled with more of them.
pub struct Batches<'a> {
    vocabulary: &'a Vocabulary,
    corpus: Corpus,
}

/// Tokens `[B, T]`, the tokens that follow them `[B * T, 1]`, and how much each of those counts
/// `[B * T, 1]`: what a user says is read, not learnt.
pub struct Batch {
    pub tokens: Tensor<2, Int>,
    pub next: Tensor<2, Int>,
    pub counts: Tensor<2>,
}

impl<'a> Batches<'a> {
    pub fn new(vocabulary: &'a Vocabulary, seed: u64) -> Self {
        Self {
            vocabulary,
            corpus: Corpus::new(seed),
        }
    }

    /// The next `len` tokens of documents.
    pub fn row(&mut self, len: usize) -> Result<Vec<u32>> {
        let mut row = Vec::with_capacity(len);
        while row.len() < len {
            let document = self
                .corpus
                .next()
                .ok_or_else(|| anyhow!("the texts came to an end"))?;
            row.extend(self.vocabulary.encode(&document)?);
        }
        row.truncate(len);
        Ok(row)
    }

    pub fn batch(&mut self, [rows, len]: [usize; 2], device: &Device) -> Result<Batch> {
        let (mut tokens, mut next, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rows {
            let row = self.row(len + 1)?;
            tokens.extend(row[..len].iter().map(|&t| i64::from(t)));
            next.extend(row[1..].iter().map(|&t| i64::from(t)));
            counts.extend(&self.counts(&row)?[1..]);
        }
        let all: f32 = counts.iter().sum();
        let share = |count: f32| count / all.max(1.0);
        let counts: Vec<f32> = counts.into_iter().map(share).collect();
        Ok(Batch {
            tokens: Tensor::from_data(TensorData::new(tokens, [rows, len]), device),
            next: Tensor::from_data(TensorData::new(next, [rows * len, 1]), device),
            counts: Tensor::from_data(TensorData::new(counts, [rows * len, 1]), device),
        })
    }

    /// 0 for the words of users, 1 for the others.
    fn counts(&self, row: &[u32]) -> Result<Vec<f32>> {
        let (message, end) = (self.vocabulary.id(MESSAGE)?, self.vocabulary.id(END)?);
        let user = self.vocabulary.id("user")?;
        let (mut inside, mut before) = (false, None);
        let count = |&token: &u32| {
            inside |= before == Some(message) && token == user;
            before = Some(token);
            let counted = !inside;
            inside &= token != end;
            f32::from(u8::from(counted))
        };
        Ok(row.iter().map(count).collect())
    }
}
