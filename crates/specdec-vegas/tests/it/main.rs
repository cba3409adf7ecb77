//! Tests of the crate. `tNN_` names the numbered case that a test pins; the cases follow the paper
//! (arXiv 2602.07223) and the authors' release.
//!
//! Mutants made by hand, and the first tests that fail for each. Candidates and queries:
//!
//! | mutant | fails |
//! |---|---|
//! | one candidate too few, too many; all that a verify pass saw | `t03`, `t13`, `t22` |
//! | a prefill ranked as a verify pass | `t01`, `t19`, `t22`, `t27` |
//! | first query left out, replaced by the second; last one left out | `t02`, `t22` |
//! | mean divided by a constant; wrong stride; queries of the first row for all | `t01`, `t02`, `t12`, `t25` |
//! | greatest head in place of the mean | `t01` |
//! | all layers ranked by the first one's attention | `t20_each_layer_ranks_for_itself` |
//! | budget of the candidates, not of the keys; rounded down | `t03`, `t08` |
//! | ties to the highest, worst first, NaN first | `t18`, `t23`, `t24` |
//! | sinks beside the budget | `t18`, `reserved_positions_count_and_sinks_come_first` |
//! | small contexts ranked; all contexts dense | `t07`, `t12` |
//!
//! Tails and what stays:
//!
//! | mutant | fails |
//! |---|---|
//! | tail one late, one early, unseen | `t03`, `t13` |
//! | not refreshed after a rejection; never refreshed | `t13`, `t25` |
//! | refreshed by rows that keep nothing; by what a prefill did not keep | `what_is_not_committed_ranks_nothing` |
//! | keys stay after an import, an eviction, a dense pass | `t27_an_imported_prefix`, `t13` |
//! | plain passes refresh one position early | `plain_passes_refresh_now_and_then` |
//! | layers with a window drafted sparsely | `windows_are_drafted_densely` |
//! | keys of another row; drafts dense | `t12`, `t25`, `t13` |
//! | foreign keys not dropped; keys not sorted | `t20_each_layer_has_its_own_keys`, `t16` |
//! | what drafts computed kept for accepted tokens | `t05_reused_drafts_are_found_out` |
//!
//! The drafter, baselines and costs:
//!
//! | mutant | fails |
//! |---|---|
//! | drafts not taken back, after success or failure | `t21`, `a_failed_draft_is_taken_back` |
//! | entropy judged after the token; ignored | `t14` |
//! | drafts beyond the context; memory not asked for | `t21`, `rows_without_memory_are_not_drafted_for` |
//! | first token of the content in place of the anchor; rows mixed up | `t06`, `t12`, `conformance` |
//! | models of another shape taken | `a_model_of_another_shape_is_refused` |
//! | a window beside the budget; random keys the same in all layers | `baselines_keep_as_many` |
//! | copies left out of a round's cost; shares upside down | `cost`, `what_is_counted` |
//!
//! A rollback that keeps what was collected survives: what is left over can never be committed.

mod config;
mod conformance;
mod cost;
mod drafting;
mod equality;
mod exact;
mod hooks;
mod keys;
mod modes;
mod sampling;
mod scores;
mod world;
