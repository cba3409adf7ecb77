//! Errors in OpenAI's format.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use specdec::core::RequestError;

/// Why a request is not served.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: "invalid_request_error",
            code: None,
            param: None,
            message: message.into(),
        }
    }

    /// A field that is wrong, and how.
    pub(crate) fn field(param: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let param = param.into();
        Self {
            param: Some(param.clone()),
            ..Self::new(StatusCode::BAD_REQUEST, format!("{param}: {message}"))
        }
    }

    pub(crate) fn busy(most: usize) -> Self {
        Self {
            kind: "rate_limit_error",
            code: Some("rate_limit_exceeded"),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                format!("{most} requests are being served, as many as are taken: try again later"),
            )
        }
    }

    pub(crate) fn too_long(len: usize, most: usize) -> Self {
        Self {
            code: Some("context_length_exceeded"),
            param: Some("prompt".into()),
            ..Self::new(
                StatusCode::BAD_REQUEST,
                format!("the prompt has {len} tokens, at most {most} are taken"),
            )
        }
    }

    pub(crate) fn no_model(asked: &str, served: &str) -> Self {
        Self {
            code: Some("model_not_found"),
            param: Some("model".into()),
            ..Self::new(
                StatusCode::NOT_FOUND,
                format!("model {asked:?} is not served here; {served:?} is"),
            )
        }
    }

    pub(crate) fn internal(message: String) -> Self {
        Self {
            kind: "server_error",
            ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        }
    }

    /// As it stands in an answer, or in the middle of a stream.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}

impl From<specdec::Error> for ApiError {
    /// What a request can be blamed for is its own fault; the rest is the server's.
    fn from(error: specdec::Error) -> Self {
        let message = error.to_string();
        match error {
            specdec::Error::Decode(specdec::core::Error::Request(error)) => match error {
                RequestError::Busy { limit, .. } => Self::busy(limit),
                RequestError::PromptTooLong { len, context } => Self::too_long(len, context),
                RequestError::EmptyPrompt | RequestError::PromptToken { .. } => {
                    Self::field("prompt", message)
                }
                RequestError::OptionToken { option, .. }
                | RequestError::OptionValue { option, .. }
                | RequestError::OptionRefused { option, .. } => Self::field(option, message),
                _ => Self::new(StatusCode::BAD_REQUEST, message),
            },
            specdec::Error::Text(_) => Self::new(StatusCode::BAD_REQUEST, message),
            _ => Self::internal(message),
        }
    }
}
