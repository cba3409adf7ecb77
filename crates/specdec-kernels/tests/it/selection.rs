//! Key lists, and the weights and scores that attention reports.

use specdec_kernels::AttentionPass;

use crate::oracle::{Heads, assert_close, values};
use crate::problem::{Problem, SMALL};

#[test]
fn key_lists_and_tails_choose_the_earlier_columns() {
    let problem = Problem::new(SMALL, &[(300, 4), (20, 2)], 16, 4);
    let listed = vec![250, 3, 4, 5, 90, 299, 250];
    let seen = |r: usize, p: usize| match r {
        0 => [3, 4, 5, 90, 250].into_iter().chain(280..=p).collect(),
        _ => (0..=p).collect::<Vec<_>>(),
    };
    let (attended, _) = problem.attend(|pass| {
        let pass = pass.keys(1, 0, listed.clone()).unwrap();
        pass.tail(0, 280).unwrap()
    });
    let (expected, _) = problem.expected(seen);
    assert_close(&values(attended.out), &expected, 2e-6);
    // A list for another layer changes nothing here.
    let (attended, _) = problem.attend(|pass| pass.keys(0, 0, vec![1]).unwrap());
    let (expected, _) = problem.expected(|_, p| (0..=p).collect());
    assert_close(&values(attended.out), &expected, 2e-6);
    // An empty list leaves the pass's own columns.
    let (attended, _) = problem.attend(|pass| pass.keys(1, 0, vec![]).unwrap());
    let (expected, _) = problem.expected(|r, p| match r {
        0 => (300..=p).collect(),
        _ => (0..=p).collect(),
    });
    assert_close(&values(attended.out), &expected, 2e-6);
}

#[test]
fn weights_are_those_of_the_queries_asked_for() {
    let problem = Problem::new(SMALL, &[(300, 4), (20, 2)], 16, 5);
    let (attended, _) = problem.attend(|pass| pass.weights_of(vec![5, 0, 3]).unwrap());
    let (_, weights) = problem.expected(|_, p| (0..=p).collect());
    let got = attended.weights.unwrap();
    assert_eq!(got.dims(), [3, 2, 304]);
    let expected: Vec<f64> = [5, 0, 3]
        .iter()
        .flat_map(|&query: &usize| weights[query].clone())
        .collect();
    assert_close(&values(got), &expected, 2e-6);

    let (attended, _) = problem.attend(|pass| {
        let pass = pass.keys(1, 0, vec![7, 200]).unwrap();
        pass.weights_of(vec![1]).unwrap()
    });
    let (_, weights) = problem.expected(|r, p| match r {
        0 => [7, 200].into_iter().chain(300..=p).collect(),
        _ => (0..=p).collect(),
    });
    assert_close(&values(attended.weights.unwrap()), &weights[1], 2e-6);
}

#[test]
fn scores_are_those_before_softmax() {
    // Behind one block and several, with lists that leave columns out, and where bands have one query or many.
    for (rows, chunk) in [
        (vec![(300, 4), (20, 2)], 16),
        (vec![(0, 40), (700, 3)], 7),
        (vec![(1030, 1), (5, 1)], 32),
    ] {
        let problem = Problem::new(SMALL, &rows, chunk, 8);
        let tokens = rows.iter().map(|row| row.1).sum::<usize>();
        let asked = vec![tokens - 1, 0];
        let listed = |start: usize| (0..start as u32).filter(|c| c % 5 < 2).collect::<Vec<_>>();
        for sparse in [false, true] {
            let (attended, _) = problem.attend(|pass| {
                let mut pass = pass.scores_of(asked.clone()).unwrap();
                if sparse {
                    pass = pass.keys(1, 0, listed(rows[0].0)).unwrap();
                }
                pass
            });
            let seen = |r: usize, p: usize| match (sparse, r) {
                (true, 0) => {
                    let earlier = listed(rows[0].0).into_iter().map(|c| c as usize);
                    earlier.chain(rows[0].0..=p).collect()
                }
                _ => (0..=p).collect::<Vec<_>>(),
            };
            let expected = problem.expected_scores(&asked, seen);
            assert_close(&values(attended.weights.unwrap()), &expected, 2e-6);
            // What is attended to has the bits of a pass that reports weights, or nothing.
            let keyed = |pass: AttentionPass| match sparse {
                true => pass.keys(1, 0, listed(rows[0].0)).unwrap(),
                false => pass,
            };
            let (weighed, _) =
                problem.attend(|pass| keyed(pass.weights_of(asked.clone()).unwrap()));
            let (plain, _) = problem.attend(keyed);
            let out = values(attended.out);
            assert_eq!(out, values(weighed.out));
            assert_eq!(out, values(plain.out));
        }
    }
}

/// One mean over all heads is the mean of what the key/value heads report, in any neighbourhood to the bit.
#[test]
fn heads_are_averaged_where_asked() {
    for report in [AttentionPass::weights_of, AttentionPass::scores_of] {
        // The second row ends within a vector of the first one's columns.
        let problem = Problem::new(SMALL, &[(300, 4), (20, 2)], 16, 6);
        let asked = |pass| report(pass, vec![5, 0]).unwrap();
        let (by_head, _) = problem.attend(asked);
        let (averaged, _) = problem.attend(|pass| asked(pass).average_heads(true));
        assert_eq!(values(averaged.out), values(by_head.out));
        let by_head = by_head.weights.unwrap();
        let [queries, heads, columns] = by_head.dims();
        let averaged = averaged.weights.unwrap();
        assert_eq!(averaged.dims(), [queries, 1, columns]);
        let (by_head, averaged) = (values(by_head), values(averaged));
        let mean = |query: usize, column: usize| -> f64 {
            let of = |head| by_head[(query * heads + head) * columns + column];
            (0..heads).map(of).map(f64::from).sum::<f64>() / heads as f64
        };
        let places = (0..queries).flat_map(|query| (0..columns).map(move |c| (query, c)));
        let expected: Vec<f64> = places.map(|(query, column)| mean(query, column)).collect();
        assert_close(&averaged, &expected, 1e-6);
        assert!(averaged[..22].iter().all(|weight| *weight != 0.0));
        // Asked about alone, the short row has fewer columns, and they are the same.
        let (alone, _) = problem.attend(|pass| report(pass, vec![5]).unwrap().average_heads(true));
        let alone = values(alone.weights.unwrap());
        assert_eq!(alone, averaged[..22]);
    }
}

/// Each head's queries see the columns of its own list.
#[test]
fn key_lists_by_head() {
    let rows = [(300, 4), (20, 2), (600, 1)];
    let problem = Problem::new(SMALL, &rows, 16, 9);
    let listed =
        |head: usize| -> Vec<u32> { (0..250).filter(|c| c % 7 == 2 * head as u32).collect() };
    let (attended, _) = problem.attend(|pass| {
        let pass = pass.head_keys(1, 0, vec![listed(0), listed(1)]).unwrap();
        let pass = pass.tail(0, 280).unwrap();
        // A single list is for all heads.
        let pass = pass.head_keys(1, 2, vec![listed(0)]).unwrap();
        pass.weights_of(vec![3, 5]).unwrap()
    });
    let weights = values(attended.weights.unwrap());
    let out = values(attended.out);
    let Heads { heads, dim, .. } = SMALL;
    let group = heads / SMALL.kv_heads;
    for kv in 0..SMALL.kv_heads {
        let (expected, expected_weights) = problem.expected(|r, p| {
            let of = |head| listed(head).into_iter().map(|c| c as usize);
            match r {
                0 => of(kv).chain(280..=p).collect(),
                2 => of(0).chain(600..=p).collect(),
                _ => (0..=p).collect::<Vec<_>>(),
            }
        });
        for token in 0..7 {
            let own = (token * heads + kv * group) * dim..(token * heads + (kv + 1) * group) * dim;
            assert_close(&out[own.clone()], &expected[own], 2e-6);
        }
        let columns = weights.len() / (2 * SMALL.kv_heads);
        for (index, query) in [3, 5].into_iter().enumerate() {
            let got = &weights[(index * SMALL.kv_heads + kv) * columns..][..columns];
            let longest = expected_weights[query].len() / SMALL.kv_heads;
            let expected = &expected_weights[query][kv * longest..][..columns];
            assert_close(got, expected, 2e-6);
        }
    }
    // The same lists for all heads have the bits of the shared list.
    let shared = problem.attend(|pass| pass.keys(1, 0, listed(1)).unwrap()).0;
    let twice = vec![listed(1), listed(1)];
    let twice = problem.attend(|pass| pass.head_keys(1, 0, twice.clone()).unwrap());
    assert_eq!(values(shared.out), values(twice.0.out));
}
