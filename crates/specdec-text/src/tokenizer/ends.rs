//! Tokens that end an answer by their name alone.

use std::collections::BTreeSet;

/// Names that mean the end of a turn or of a text in every vocabulary that has them as a token beside the text
/// (special or user-defined).
const ALWAYS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_utterance>",
    "<|return|>",
    "<|call|>",
    "[|endofturn|]",
    "<｜end▁of▁sentence｜>",
];

/// Names that some vocabularies have as ordinary text (HTML, for one); they count where they are special.
const WHERE_SPECIAL: &[&str] = &["</s>", "<eos>", "<EOT>", "[EOS]"];

/// Ends a turn, except in vocabularies with `<|return|>`, where it ends one message of several.
const END: &str = "<|end|>";

/// The end tokens among (id, text, special) of the tokens beside the text.
pub(crate) fn well_known<'a>(
    tokens: impl Iterator<Item = (u32, &'a str, bool)> + Clone,
) -> BTreeSet<u32> {
    let end_is_inner = tokens.clone().any(|(_, text, _)| text == "<|return|>");
    tokens
        .filter(|&(_, text, special)| {
            ALWAYS.contains(&text)
                || (special && WHERE_SPECIAL.contains(&text))
                || (text == END && !end_is_inner)
        })
        .map(|(id, _, _)| id)
        .collect()
}
