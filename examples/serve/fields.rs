//! The fields of a request's body, each taken out once; one that nobody has taken is unknown.

use crate::error::ApiError;
use axum::http::StatusCode;
use serde_json::{Map, Value};

pub(crate) struct Fields(Map<String, Value>);

type Taken<T> = Result<Option<T>, ApiError>;

impl Fields {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(_) => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "the body is no JSON object",
            )),
            Err(error) => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                format!("the body is not JSON: {error}"),
            )),
        }
    }

    /// The value of a field; null counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, name: &str) -> Taken<String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::field(name, "a string is needed")),
        }
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(ApiError::field(name, "true or false is needed")),
        }
    }

    /// A number from `least` to `most`.
    pub(crate) fn number(&mut self, name: &str, least: f64, most: f64) -> Taken<f32> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match value.as_f64().filter(|n| (least..=most).contains(n)) {
            Some(number) => Ok(Some(number as f32)),
            None => Err(ApiError::field(
                name,
                format!("a number from {least} to {most} is needed"),
            )),
        }
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn count(&mut self, name: &str, least: usize, most: usize) -> Taken<usize> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
        match number.filter(|n| (least..=most).contains(n)) {
            Some(number) => Ok(Some(number)),
            None => Err(ApiError::field(
                name,
                format!("a whole number from {least} to {most} is needed"),
            )),
        }
    }

    /// Any 64-bit whole number, as the bits of a seed.
    pub(crate) fn seed(&mut self) -> Taken<u64> {
        let Some(value) = self.take("seed") else {
            return Ok(None);
        };
        let seed = value.as_u64().or_else(|| value.as_i64().map(|n| n as u64));
        seed.map(Some)
            .ok_or_else(|| ApiError::field("seed", "a whole number of 64 bits is needed"))
    }

    /// A field that may only have the value it has when left out.
    pub(crate) fn only(&mut self, name: &str, value: impl Into<Value>) -> Result<(), ApiError> {
        let value = value.into();
        match self.take(name) {
            Some(given) if given != value => {
                Err(ApiError::field(name, format!("only {value} is supported")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what is left.
    pub(crate) fn end(self) -> Result<(), ApiError> {
        match self.0.into_iter().find(|(_, value)| !value.is_null()) {
            Some((name, _)) => Err(ApiError::field(name, "this field is not supported")),
            None => Ok(()),
        }
    }
}
