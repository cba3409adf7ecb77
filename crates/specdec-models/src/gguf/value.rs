//! Metadata values and the table that holds them.

use crate::{LoadError, error::Result};
use std::collections::BTreeMap;

/// A metadata value of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Type 0.
    U8(u8),
    /// Type 1.
    I8(i8),
    /// Type 2.
    U16(u16),
    /// Type 3.
    I16(i16),
    /// Type 4.
    U32(u32),
    /// Type 5.
    I32(i32),
    /// Type 6.
    F32(f32),
    /// Type 7.
    Bool(bool),
    /// Type 8, UTF-8.
    String(String),
    /// Type 9.
    Array(Array),
    /// Type 10.
    U64(u64),
    /// Type 11.
    I64(i64),
    /// Type 12.
    F64(f64),
}

/// An array of metadata values of one type.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Array {
    /// Elements of type 0.
    U8(Vec<u8>),
    /// Elements of type 1.
    I8(Vec<i8>),
    /// Elements of type 2.
    U16(Vec<u16>),
    /// Elements of type 3.
    I16(Vec<i16>),
    /// Elements of type 4.
    U32(Vec<u32>),
    /// Elements of type 5.
    I32(Vec<i32>),
    /// Elements of type 6.
    F32(Vec<f32>),
    /// Elements of type 7.
    Bool(Vec<bool>),
    /// Elements of type 8.
    String(Vec<String>),
    /// Elements of type 9.
    Array(Vec<Array>),
    /// Elements of type 10.
    U64(Vec<u64>),
    /// Elements of type 11.
    I64(Vec<i64>),
    /// Elements of type 12.
    F64(Vec<f64>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers, if they are.
    pub fn integers(&self) -> Option<Vec<i64>> {
        Some(match self {
            Self::U8(v) => v.iter().map(|&x| x.into()).collect(),
            Self::I8(v) => v.iter().map(|&x| x.into()).collect(),
            Self::U16(v) => v.iter().map(|&x| x.into()).collect(),
            Self::I16(v) => v.iter().map(|&x| x.into()).collect(),
            Self::U32(v) => v.iter().map(|&x| x.into()).collect(),
            Self::I32(v) => v.iter().map(|&x| x.into()).collect(),
            Self::I64(v) => v.clone(),
            Self::U64(v) => v
                .iter()
                .map(|&x| i64::try_from(x).ok())
                .collect::<Option<_>>()?,
            _ => return None,
        })
    }
}

impl Value {
    /// The value as an unsigned integer, whatever integer type it is stored as.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value as a float, whatever number type it is stored as.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            Self::I8(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::I64(v) => Some(v as f64),
            _ => self.as_u64().map(|v| v as f64),
        }
    }

    /// A short form for error messages.
    pub(crate) fn brief(&self) -> String {
        match self {
            Self::Array(array) => format!("an array of {}", array.len()),
            Self::String(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
            other => format!("{other:?}"),
        }
    }
}

/// The metadata of a GGUF file, by key.
///
/// The typed getters give `Ok(None)` for an absent key and [`LoadError::InvalidKey`] for one of
/// another type, so that a caller can tell the two.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// No keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key; the value it had before.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        self.values.insert(key.into(), value)
    }

    /// Takes a key out; the value it had.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.values.remove(key)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Every key with its value, in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The keys that begin with `prefix`, as a table of their own (full names).
    pub fn subset(&self, prefix: &str) -> Self {
        let values = self
            .values
            .iter()
            .filter(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Self { values }
    }

    /// A string.
    ///
    /// # Errors
    /// [`LoadError::InvalidKey`] when the key holds something else.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string is needed", |v| match v {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A non-negative integer of any width.
    ///
    /// # Errors
    /// [`LoadError::InvalidKey`] when the key holds something else.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a non-negative integer is needed", Value::as_u64)
    }

    /// A number.
    ///
    /// # Errors
    /// [`LoadError::InvalidKey`] when the key holds something else.
    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number is needed", Value::as_f64)
    }

    /// A truth value.
    ///
    /// # Errors
    /// [`LoadError::InvalidKey`] when the key holds something else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false is needed", |v| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// An array of strings (`tokenizer.ggml.tokens`, `tokenizer.ggml.merges`).
    ///
    /// # Errors
    /// [`LoadError::InvalidKey`] when the key holds something else.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of strings is needed", |v| match v {
            Value::Array(Array::String(items)) => Some(items.as_slice()),
            _ => None,
        })
    }

    /// An array of f32 (`tokenizer.ggml.scores`).
    ///
    /// # Errors
    /// [`LoadError::InvalidKey`] when the key holds something else.
    pub fn floats(&self, key: &str) -> Result<Option<&[f32]>> {
        self.typed(key, "an array of f32 is needed", |v| match v {
            Value::Array(Array::F32(items)) => Some(items.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any width (`tokenizer.ggml.token_type`).
    ///
    /// # Errors
    /// [`LoadError::InvalidKey`] when the key holds something else.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.typed(key, "an array of integers is needed", |v| match v {
            Value::Array(items) => items.integers(),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(LoadError::invalid(key, value.brief(), wanted)),
        }
    }
}
