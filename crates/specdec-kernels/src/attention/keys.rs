use core::ops::Range;
use std::collections::BTreeMap;

/// Which of a row's earlier columns are attended to.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    /// Per layer: ascending columns, one list for all key/value heads or one for each. A layer without a list sees all
    /// earlier columns.
    lists: BTreeMap<usize, Vec<Vec<u32>>>,
    /// Columns from here to the row's first new one are seen beside any list.
    tail: Option<usize>,
}

impl Keys {
    pub(super) fn list(&mut self, layer: usize, lists: Vec<Vec<u32>>) {
        self.lists.insert(layer, lists);
    }

    pub(super) fn see_from(&mut self, column: usize) {
        self.tail = Some(column);
    }

    /// How many lists a layer has.
    pub(super) fn lists(&self, layer: usize) -> Option<usize> {
        self.lists.get(&layer).map(Vec::len)
    }

    /// The first list of a layer, without the columns of the tail, and where the tail begins; nothing and 0 without a
    /// list.
    #[cfg(feature = "burn-cubecl")]
    pub(super) fn listed(&self, layer: usize, start: usize) -> (&[u32], usize) {
        let Some(list) = self.lists.get(&layer).and_then(|lists| lists.first()) else {
            return (&[], 0);
        };
        let tail = self.tail.unwrap_or(start);
        let below = list.partition_point(|&column| (column as usize) < tail);
        (&list[..below], tail)
    }

    /// The runs of columns below `start` that are seen in a layer, ascending: one entry a list.
    pub(super) fn earlier(&self, layer: usize, start: usize) -> Vec<Vec<Range<usize>>> {
        let tail = self.tail.unwrap_or(start)..start;
        match self.lists.get(&layer) {
            Some(lists) => lists.iter().map(|list| runs(list, tail.clone())).collect(),
            None => vec![(start > 0).then_some(0..start).into_iter().collect()],
        }
    }
}

/// Runs of the listed columns before the tail, and of the tail.
fn runs(list: &[u32], tail: Range<usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let listed = list.iter().map(|&column| column as usize);
    for column in listed.take_while(|&column| column < tail.start) {
        match runs.last_mut() {
            Some(run) if run.end == column => run.end += 1,
            _ => runs.push(column..column + 1),
        }
    }
    match runs.last_mut() {
        _ if tail.is_empty() => {}
        Some(run) if run.end == tail.start => run.end = tail.end,
        _ => runs.push(tail),
    }
    runs
}
