//! Everything a GGUF file can hold comes back as it was written.

use specdec_models::{
    GgufFile, LoadError,
    gguf::{Array, GgmlType, GgufWriter, Metadata, Value},
};

fn every_type() -> Metadata {
    let mut all = Metadata::new();
    let nested = Array::Array(vec![
        Array::String(vec!["a".to_owned(), String::new()]),
        Array::Array(vec![Array::I8(vec![-1])]),
    ]);
    for (key, value) in [
        ("u8", Value::U8(200)),
        ("i8", Value::I8(-100)),
        ("u16", Value::U16(60_000)),
        ("i16", Value::I16(-30_000)),
        ("u32", Value::U32(4_000_000_000)),
        ("i32", Value::I32(-2_000_000_000)),
        ("f32", Value::F32(0.1)),
        ("bool", Value::Bool(true)),
        ("string", Value::String("päd 好".to_owned())),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f64", Value::F64(0.1)),
        ("a.u8", Value::Array(Array::U8(vec![1, 2, 3]))),
        ("a.i8", Value::Array(Array::I8(vec![-1]))),
        ("a.u16", Value::Array(Array::U16(vec![1]))),
        ("a.i16", Value::Array(Array::I16(vec![-5, 5]))),
        ("a.u32", Value::Array(Array::U32(vec![7]))),
        ("a.i32", Value::Array(Array::I32(vec![-7]))),
        ("a.f32", Value::Array(Array::F32(vec![0.5, -0.5]))),
        ("a.bool", Value::Array(Array::Bool(vec![true, false]))),
        ("a.u64", Value::Array(Array::U64(vec![u64::MAX]))),
        ("a.i64", Value::Array(Array::I64(vec![-9]))),
        ("a.f64", Value::Array(Array::F64(vec![1e300]))),
        ("a.empty", Value::Array(Array::String(Vec::new()))),
        ("a.nested", Value::Array(nested)),
    ] {
        all.insert(key, value);
    }
    all
}

#[test]
fn every_metadata_type_survives_a_round_trip() {
    let all = every_type();
    let mut writer = GgufWriter::new();
    *writer.metadata() = all.clone();
    writer.tensor("t", &[2, 3], GgmlType::from_id(24), vec![1, 2, 3, 4, 5, 6]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.gguf");
    writer.write(&path).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(*file.metadata(), all);
    let tensor = file.tensor("t").unwrap();
    assert_eq!(tensor.shape(), [2, 3]);
    assert_eq!(tensor.kind().to_string(), "I8");
    assert_eq!(tensor.bytes().unwrap(), [1, 2, 3, 4, 5, 6]);
    assert!(file.tensor("u").is_none());
}

#[test]
fn typed_getters_tell_absent_from_wrong() {
    let all = every_type();
    assert_eq!(all.u64("u16").unwrap(), Some(60_000));
    assert_eq!(all.f64("i16").unwrap(), Some(-30_000.0));
    assert_eq!(all.string("string").unwrap(), Some("päd 好"));
    assert_eq!(all.bool("bool").unwrap(), Some(true));
    assert_eq!(all.integers("a.i16").unwrap(), Some(vec![-5, 5]));
    assert_eq!(all.floats("a.f32").unwrap(), Some(&[0.5, -0.5][..]));
    assert_eq!(all.strings("a.empty").unwrap(), Some(&[][..]));
    assert_eq!(all.u64("absent").unwrap(), None);
    for error in [
        all.u64("i8").unwrap_err(),
        all.string("bool").unwrap_err(),
        all.bool("u8").unwrap_err(),
        all.integers("a.u64").unwrap_err(),
        all.strings("string").unwrap_err(),
    ] {
        assert!(matches!(error, LoadError::InvalidKey { .. }), "{error}");
    }
    assert_eq!(all.subset("a.").len(), 13);
}
