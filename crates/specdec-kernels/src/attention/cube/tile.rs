//! How a kernel's work is cut up.

use burn_cubecl::cubecl::ir::HardwareProperties;

/// Units of a cube.
pub(crate) const UNITS: usize = 128;

/// Keys and values of a staged block, in numbers, at most.
const BLOCK_NUMBERS: usize = 4096;

/// The sizes of a cube's work. A query here is a token with one of its query heads: one cube takes `queries` of them,
/// all of one row and one key/value head, and goes through the keys in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    /// Head dimension.
    pub(crate) dim: usize,
    /// Query heads of a key/value head.
    pub(crate) group: usize,
    /// Queries of a cube: a power of two.
    pub(crate) queries: usize,
    /// Keys of a block: a power of two that divides [`UNITS`].
    pub(crate) keys: usize,
}

impl Tile {
    /// The sizes for rows of up to `longest` tokens, or `None` where the device is too small for them.
    pub(super) fn new(
        dim: usize,
        group: usize,
        longest: usize,
        hardware: &HardwareProperties,
    ) -> Option<Self> {
        if (hardware.max_units_per_cube as usize) < UNITS || hardware.max_cube_dim.0 < UNITS as u32
        {
            return None;
        }
        let mut keys = power_below((BLOCK_NUMBERS / dim).clamp(8, 64));
        while keys >= 8 {
            // Every unit scores one key of a block, for at least one query.
            let least = UNITS / keys;
            let most = power_below((BLOCK_NUMBERS / 2 / dim).clamp(least, 32));
            let tile = Self {
                dim,
                group,
                queries: longest
                    .saturating_mul(group)
                    .min(most)
                    .next_power_of_two()
                    .max(least),
                keys,
            };
            if tile.shared_bytes() <= hardware.max_shared_memory_size {
                return Some(tile);
            }
            keys /= 2;
        }
        None
    }

    /// Queries that each unit scores with its key.
    pub(super) fn scored(self) -> usize {
        self.queries * self.keys / UNITS
    }

    /// Units side by side along the head dimension, where values are summed.
    pub(super) fn lanes(self) -> usize {
        self.dim.min(UNITS)
    }

    /// Groups of such lanes.
    pub(super) fn lane_groups(self) -> usize {
        UNITS / self.lanes()
    }

    /// Queries whose sums a unit holds.
    pub(super) fn summed(self) -> usize {
        self.queries.div_ceil(self.lane_groups())
    }

    /// Dimensions that a unit sums.
    pub(super) fn dims_of_unit(self) -> usize {
        self.dim.div_ceil(self.lanes())
    }

    /// Queries that have a place in shared memory: a few more than there are, where lanes and queries do not match.
    pub(super) fn places(self) -> usize {
        self.queries.max(self.summed() * self.lane_groups())
    }

    /// Numbers from one key to the next in shared memory, and from one query's scores to the next's: one more than
    /// there are, so that neighbouring units read from different banks.
    pub(super) fn key_step(self) -> usize {
        self.dim + 1
    }

    pub(super) fn score_step(self) -> usize {
        self.keys + 1
    }

    /// Bytes of shared memory of a cube.
    fn shared_bytes(self) -> usize {
        let queries = self.queries * self.dim + self.places() * (self.score_step() + 3);
        let keys = self.keys * (self.key_step() + 2);
        (queries + keys) * size_of::<f32>()
    }
}

/// The greatest power of two that is not above `number`.
fn power_below(number: usize) -> usize {
    1 << number.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hardware(shared: usize) -> HardwareProperties {
        HardwareProperties {
            load_width: 128,
            vector_register_count: None,
            plane_size_min: 32,
            plane_size_max: 32,
            max_bindings: 8,
            max_shared_memory_size: shared,
            max_cube_count: (65535, 65535, 65535),
            max_units_per_cube: 256,
            max_cube_dim: (256, 256, 64),
            num_streaming_multiprocessors: None,
            num_cpu_cores: None,
            last_level_cache_size: None,
            num_tensor_cores: None,
            min_tensor_cores_dim: None,
            max_vector_size: 4,
            cube_mma_reserved_shared_memory: 0,
        }
    }

    #[test]
    fn every_head_dimension_fits() {
        for shared in [16 << 10, 32 << 10, 48 << 10] {
            for dim in 1..=320 {
                for (group, longest) in [(1, 1), (3, 1), (4, 5), (1, 600), (71, 9)] {
                    let Some(tile) = Tile::new(dim, group, longest, &hardware(shared)) else {
                        assert!(shared < 32 << 10 && dim > 64, "{shared} bytes, {dim}");
                        continue;
                    };
                    assert!(tile.shared_bytes() <= shared);
                    assert!(tile.queries.is_power_of_two() && tile.keys.is_power_of_two());
                    assert_eq!(tile.scored() * UNITS, tile.queries * tile.keys);
                    assert!(tile.lanes() * tile.lane_groups() <= UNITS);
                    assert!(tile.lanes() * tile.dims_of_unit() >= dim);
                    assert!(tile.summed() * tile.lane_groups() >= tile.queries);
                }
            }
        }
        let mut cpu = hardware(1 << 20);
        cpu.max_units_per_cube = 8;
        assert_eq!(Tile::new(64, 3, 1, &cpu), None);
    }
}
