use super::PrefixStore;
use crate::costs::CostTable;
use crate::joint::worth_restoring;
use burn::prelude::*;
use specdec_core::{
    BuildError, KvSegment, ModelSpec, PrefixCache, PrefixImport, PrefixQuery, Result, Token,
};
use std::ops::Range;
use std::sync::Arc;

/// A [`PrefixStore`] as a decoder takes it, or a drafter that runs a model with a cache of its own:
/// entries are supplied where taking them in is predicted to be faster than computing them.
#[derive(Debug, Clone)]
pub struct StoredPrefixes {
    store: PrefixStore,
    device: Device,
    costs: Option<Arc<CostTable>>,
}

impl StoredPrefixes {
    /// Supplies whatever is stored, as tensors on this device.
    pub fn new(store: PrefixStore, device: &Device) -> Self {
        Self {
            store,
            device: device.clone(),
            costs: None,
        }
    }

    /// Supplies what is faster to take in than to compute, by these costs.
    pub fn with_costs(mut self, costs: impl Into<Arc<CostTable>>) -> Self {
        self.costs = Some(costs.into());
        self
    }

    /// The store.
    pub fn store(&self) -> &PrefixStore {
        &self.store
    }

    fn seconds(&self, tokens: &[Token], range: &Range<usize>) -> f64 {
        match &self.costs {
            Some(costs) => costs.prefill_seconds(range.start, range.end),
            // In unknown units: deep positions cost more.
            None => range.len() as f64 * (1.0 + tokens.len() as f64 / 1024.0) * 1e-3,
        }
    }
}

impl PrefixCache for StoredPrefixes {
    fn fetch(&mut self, query: &PrefixQuery<'_>) -> Option<KvSegment> {
        if let Some(costs) = &self.costs {
            let stored = self.store.stored(query.scope, query.tokens, query.limit)?;
            if !worth_restoring(costs, &stored) {
                self.store.lock().stats.declined += 1;
                return None;
            }
        }
        let lease = self.store.lookup(query.scope, query.tokens, query.limit)?;
        lease.segment(&self.device)
    }

    fn imported(&mut self, import: &PrefixImport<'_>) {
        if import.error.is_some() {
            self.store.lock().stats.failed += 1;
        }
    }

    fn missing(&self, query: &PrefixQuery<'_>) -> Range<usize> {
        self.store.missing(query.scope, query.tokens)
    }

    fn store(&mut self, query: &PrefixQuery<'_>, entries: Result<KvSegment>) {
        let stored = match entries {
            Err(_) => {
                self.store.lock().stats.unexported += 1;
                return;
            }
            Ok(entries) => {
                let seconds = self.seconds(query.tokens, &entries.range);
                let tokens = &query.tokens[..entries.range.end.min(query.tokens.len())];
                self.store.insert(query.scope, tokens, entries, seconds)
            }
        };
        if let Err(error) = stored {
            self.store.lock().refuse(error);
        }
    }

    fn check(&self, target: &ModelSpec) -> Result<(), BuildError> {
        self.store.identity().check(target)
    }
}
