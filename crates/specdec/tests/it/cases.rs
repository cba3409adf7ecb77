//! The table of cases in the guide names tests that exist, for every case.

use std::path::Path;

/// How many cases each group has.
const GROUPS: [(char, usize); 10] = [
    ('A', 10),
    ('B', 6),
    ('C', 6),
    ('D', 3),
    ('E', 6),
    ('F', 9),
    ('G', 8),
    ('H', 6),
    ('I', 7),
    ('J', 1),
];

#[test]
fn every_case_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read =
        |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let table = read(&root.join("docs/testing.md"));
    let mut checked = 0;
    for (group, count) in GROUPS {
        for number in 1..=count {
            let case = format!("| {group}{number} | ");
            let row = table.lines().find(|line| line.starts_with(&case));
            let row = row.unwrap_or_else(|| panic!("no row of case {group}{number}"));
            let tests = row
                .trim_end_matches(" |")
                .rsplit(" | ")
                .next()
                .unwrap_or("");
            assert!(!tests.is_empty(), "{row}");
            for part in tests.split("; ") {
                let mut names = part.split('`').skip(1).step_by(2);
                let file = names.next().unwrap_or_else(|| panic!("no file in {part}"));
                if file == ".ci/run" {
                    let script = read(&root.join(file));
                    for step in part.split('"').skip(1).step_by(2) {
                        assert!(script.contains(&format!("step \"{step}")), "no step {step}");
                        checked += 1;
                    }
                    continue;
                }
                let source = read(&root.join("crates").join(file));
                for name in names {
                    assert!(
                        source.contains(&format!("fn {name}(")),
                        "no {name} in {file}"
                    );
                    checked += 1;
                }
            }
        }
    }
    assert!(checked >= 62, "{checked} tests named");
}
