//! A matrix cut into cells that threads fill at the same time.
#![allow(unsafe_code)]

use core::{marker::PhantomData, ops::Range};

use crate::threads::for_each;

/// Some rows and columns of a matrix, to be written by one thread.
#[derive(Debug)]
pub(crate) struct Cell<'a> {
    first: *mut f32,
    row_len: usize,
    rows: usize,
    width: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

impl Cell<'_> {
    /// Columns of the cell.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The cell's part of its row `row`.
    ///
    /// # Panics
    ///
    /// When the cell has no such row.
    pub(crate) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of a cell of {}", self.rows);
        // SAFETY: `for_each_cell` made the cell of `rows` rows and `width` columns that lie within its matrix, which is
        // borrowed for `'a`, and hands out no other cell that shares a value with it; `&mut self` keeps its rows apart.
        unsafe { core::slice::from_raw_parts_mut(self.first.add(row * self.row_len), self.width) }
    }
}

/// The start of a matrix, sent to the threads that fill it.
struct Start(*mut f32);

// SAFETY: the pointer comes from a `&mut [f32]`, whose parts may be used on any thread; who uses which part is
// settled by `for_each_cell`.
unsafe impl Sync for Start {}

impl Start {
    /// A method, so that closures capture the whole (`Sync`) struct.
    fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// Cuts `matrix`, of rows of `row_len`, into bands of rows and strips of `width` columns (the last may be narrower),
/// and calls `work(band, strip, cell)` once for each, on as many threads as the kernels use.
///
/// # Panics
///
/// When the bands are not ascending, overlap, or leave the matrix.
pub(crate) fn for_each_cell(
    matrix: &mut [f32],
    (row_len, width): (usize, usize),
    bands: &[Range<usize>],
    work: impl Fn(usize, usize, Cell<'_>) + Sync,
) {
    assert!(row_len > 0 && width > 0, "a matrix without columns");
    let rows = matrix.len() / row_len;
    let mut end = 0;
    for band in bands {
        assert!(
            end <= band.start && band.start <= band.end && band.end <= rows,
            "bands {bands:?} of {rows} rows"
        );
        end = band.end;
    }
    let strips = row_len.div_ceil(width);
    let start = Start(matrix.as_mut_ptr());
    for_each(bands.len() * strips, |item| {
        // Strips of one band lie next to each other in time too: they read the same activations.
        let (band, strip) = (item / strips, item % strips);
        let column = strip * width;
        let cell = Cell {
            first: start.at(bands[band].start * row_len + column),
            row_len,
            rows: bands[band].len(),
            width: width.min(row_len - column),
            matrix: PhantomData,
        };
        work(band, strip, cell);
    });
}
