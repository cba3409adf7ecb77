use specdec_text::{GgufVocabulary, Tokenizer, VocabularyDifference};

use crate::fixtures::{byte_level, byte_level_gguf};

fn build(vocabulary: &GgufVocabulary) -> Tokenizer {
    Tokenizer::from_gguf(vocabulary).unwrap()
}

#[test]
fn f1_equal_vocabularies_have_no_difference_whatever_file_they_come_from() {
    let (one, other) = (build(&byte_level_gguf()), build(&byte_level_gguf()));
    assert_eq!(one.first_difference(&other), None);
    // The tokenizer.json alone does not know the begin token: that is the first difference, after all texts.
    assert_eq!(
        one.first_difference(&byte_level()),
        Some(VocabularyDifference::Begin {
            left: Some(1),
            right: None
        })
    );
}

#[test]
fn f1_two_swapped_entries_are_found_and_the_first_is_named() {
    let one = build(&byte_level_gguf());
    let mut swapped = byte_level_gguf();
    swapped.tokens.swap(50, 60);
    let difference = one.first_difference(&build(&swapped)).unwrap();
    let VocabularyDifference::Token { id, left, right } = &difference else {
        panic!("{difference}")
    };
    assert_eq!(*id, 50);
    assert_eq!(
        (left.as_deref(), right.as_deref()),
        (
            one.decode(&[50], true).ok().as_deref(),
            one.decode(&[60], true).ok().as_deref()
        )
    );
    assert!(
        difference.to_string().contains("token 50 is "),
        "{difference}"
    );
}

#[test]
fn f1_different_begin_or_end_ids_are_found() {
    let one = build(&byte_level_gguf());
    let begin = build(&GgufVocabulary {
        bos_id: Some(0),
        ..byte_level_gguf()
    });
    let difference = one.first_difference(&begin).unwrap();
    assert_eq!(
        difference,
        VocabularyDifference::Begin {
            left: Some(1),
            right: Some(0)
        }
    );
    assert_eq!(
        difference.to_string(),
        "the begin token is 1 in one vocabulary and 0 in the other"
    );
    let end = build(&GgufVocabulary {
        eos_id: Some(40),
        ..byte_level_gguf()
    });
    assert!(matches!(
        one.first_difference(&end),
        Some(VocabularyDifference::End { .. })
    ));
}

#[test]
fn f1_different_sizes_are_found() {
    let one = build(&byte_level_gguf());
    let mut longer = byte_level_gguf();
    longer.tokens.push("<more>".to_owned());
    longer.token_types.as_mut().unwrap().push(4);
    let size = one.vocab_size();
    let longer = build(&longer);
    assert_eq!(
        one.first_difference(&longer),
        Some(VocabularyDifference::Size {
            left: size,
            right: size + 1
        })
    );
    assert_eq!(
        longer.first_difference(&one),
        Some(VocabularyDifference::Size {
            left: size + 1,
            right: size
        })
    );
}
