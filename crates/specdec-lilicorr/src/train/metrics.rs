/// What a step of training, or an evaluation, measured. Prefixes are lengths in drafted tokens, means over
/// the blocks that the head's terms saw.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct StepMetrics {
    /// The step, counted from 1.
    pub step: usize,
    /// The learning rate; 0 in an evaluation.
    pub rate: f64,
    /// The whole loss: the drafter's, and the head's terms with their weights.
    pub loss: f32,
    /// The drafter's own cross-entropy, weighted along the block.
    pub drafter: f32,
    /// The head's cross-entropy.
    pub cross_entropy: f32,
    /// The head's hinge.
    pub margin: f32,
    /// The head's penalty.
    pub penalty: f32,
    /// The head's soft cross-entropy.
    pub soft: f32,
    /// Blocks of the step.
    pub blocks: usize,
    /// Slots that the head's terms saw.
    pub alive: usize,
    /// How far the text stays among the candidates.
    pub oracle_prefix: f64,
    /// How far the greedy walk is right.
    pub selected_prefix: f64,
    /// How far the drafter's own best tokens are right.
    pub top1_prefix: f64,
}
