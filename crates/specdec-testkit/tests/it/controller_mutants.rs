use crate::device;
use specdec_core::{Controller, FixedLength, Outcome, Plan, PoolView};
use specdec_testkit::conformance::{self, ControllerPromises};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    TooLong,
    TooMany,
    PlansForNobody,
    NeighboursMatter,
}

struct Mutant {
    bug: Bug,
    seen: u64,
}

impl Controller for Mutant {
    fn plan(&mut self, view: &PoolView) -> Plan {
        let mut lengths: Vec<usize> = view.rows.iter().map(|row| row.max_draft.min(3)).collect();
        match self.bug {
            Bug::TooLong => lengths.iter_mut().for_each(|k| *k = 3),
            Bug::TooMany => lengths.extend(lengths.clone()),
            Bug::PlansForNobody if lengths.is_empty() => lengths.push(0),
            Bug::NeighboursMatter => {
                let others = view.rows.len().saturating_sub(1);
                lengths
                    .iter_mut()
                    .for_each(|k| *k = k.saturating_sub(others));
            }
            _ => {}
        }
        Plan { lengths }
    }

    fn observe(&mut self, outcome: &Outcome) {
        self.seen += outcome.rows.len() as u64;
    }
}

#[test]
fn a_fixed_length_keeps_the_contract() {
    let mut promises = ControllerPromises::default();
    promises.independent_rows = true;
    let report = conformance::controller_promising(&promises, &device(), || FixedLength(4));
    let report = report.unwrap_or_else(|v| panic!("{v}"));
    assert!(
        report
            .to_string()
            .contains("a row's lengths do not depend on its neighbours")
    );
}

#[test]
fn every_planted_bug_is_found_by_the_right_check() {
    let mut promises = ControllerPromises::default();
    promises.independent_rows = true;
    for (bug, check) in [
        (Bug::TooLong, "a length is no more than the row can use"),
        (Bug::TooMany, "a plan has no more entries than rows"),
        (Bug::PlansForNobody, "a plan has no more entries than rows"),
        (
            Bug::NeighboursMatter,
            "a row's lengths do not depend on its neighbours",
        ),
    ] {
        let make = || Mutant { bug, seen: 0 };
        match conformance::controller_promising(&promises, &device(), make) {
            Ok(_) => panic!("{bug:?} was not found"),
            Err(v) => assert_eq!(v.check, check, "{bug:?}: {v}"),
        }
    }
    let unpromised = conformance::controller(&device(), || Mutant {
        bug: Bug::NeighboursMatter,
        seen: 0,
    });
    assert!(unpromised.is_ok(), "{unpromised:?}");
}
