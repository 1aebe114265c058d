//! Constant masks that depend on `column − row` alone: triangles and bands, as exporters fold them from `Range`,
//! `Trilu` and comparisons.

use ir::{DType, HostTensor};

/// A mask over rows and columns: `first ≤ column − row ≤ last` are seen. One of the bounds is there at least.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Band {
    pub first: Option<i64>,
    pub last: Option<i64>,
    /// The number of what is not seen, where the mask is of numbers to add and what is seen is 0; of a bool mask, which
    /// is true where something is seen, 0.
    pub hidden: f64,
}

/// Numbers above this are no mask's.
const LEAST_HIDDEN: f64 = -1e3;

impl Band {
    /// Reads the last two axes of a tensor, whose other axes must repeat it.
    pub fn of(tensor: &HostTensor) -> Option<Band> {
        let [.., rows, columns] = tensor.shape[..] else {
            return None;
        };
        if rows < 2 || columns < 2 || tensor.elements() == 0 {
            return None;
        }
        let (seen, hidden) = elements_seen(tensor)?;
        let plane = rows * columns;
        let (mut first, mut last) = (i64::MAX, i64::MIN);
        for (row, of_row) in seen[..plane].chunks(columns).enumerate() {
            let at = |column: usize| column as i64 - row as i64;
            if let (Some(from), Some(to)) = (of_row.iter().position(|s| *s), of_row.iter().rposition(|s| *s)) {
                (first, last) = (first.min(at(from)), last.max(at(to)));
            }
        }
        let is_band = seen.chunks(columns).enumerate().all(|(row, of_row)| {
            let row = (row % rows) as i64;
            let mut places = of_row.iter().zip(-row..);
            places.all(|(seen, at)| *seen == (first <= at && at <= last))
        });
        let (least, most) = (1 - rows as i64, columns as i64 - 1);
        let band = Band {
            first: (first > least).then_some(first),
            last: (last < most).then_some(last),
            hidden,
        };
        (is_band && first <= last && (band.first.is_some() || band.last.is_some())).then_some(band)
    }

    /// Says whether it is a causal mask of so many rows and columns, as attention has it: the last row sees the last
    /// column.
    pub fn is_causal(&self, rows: i64, columns: i64) -> bool {
        self.first.is_none() && self.last == Some(columns - rows)
    }
}

/// Says of each element of a mask whether it is seen, and by what number the others are hidden; `None` where it is no
/// mask.
fn elements_seen(tensor: &HostTensor) -> Option<(Vec<bool>, f64)> {
    match tensor.dtype {
        DType::Bool => Some((tensor.bytes.iter().map(|b| *b != 0).collect(), 0.0)),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
            // The first and the last element tell most weights from masks.
            let numbers = tensor.to_f64();
            let hidden = numbers.iter().copied().find(|v| *v != 0.0)?;
            let two_valued = hidden < LEAST_HIDDEN && numbers.iter().all(|v| *v == 0.0 || *v == hidden);
            two_valued.then(|| (numbers.iter().map(|v| *v == 0.0).collect(), hidden))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(shape: &[usize], seen: impl Fn(i64, i64) -> bool) -> Vec<bool> {
        let [.., rows, columns] = shape[..] else {
            unreachable!("a matrix")
        };
        let all = shape.iter().product::<usize>();
        let at = |i: usize| ((i / columns % rows) as i64, (i % columns) as i64);
        (0..all).map(at).map(|(row, column)| seen(row, column)).collect()
    }

    fn of_numbers(shape: &[usize], hidden: f64, seen: impl Fn(i64, i64) -> bool) -> Option<Band> {
        let numbers: Vec<f64> = mask(shape, seen)
            .iter()
            .map(|s| if *s { 0.0 } else { hidden })
            .collect();
        Band::of(&HostTensor::from_f64(DType::F32, shape.to_vec(), &numbers).expect("as many as elements"))
    }

    #[test]
    fn triangles_and_bands_are_read() {
        let infinite = f64::NEG_INFINITY;
        let found = of_numbers(&[2, 1, 5, 8], infinite, |row, column| column <= row + 3).expect("causal");
        assert_eq!((found.first, found.last, found.hidden), (None, Some(3), infinite));
        assert!(found.is_causal(5, 8) && !found.is_causal(5, 7));
        let found = of_numbers(&[6, 6], -65504.0, |row, column| column <= row && column > row - 3);
        assert_eq!(found.map(|b| (b.first, b.last)), Some((Some(-2), Some(0))));
        let upper = mask(&[4, 4], |row, column| column > row);
        let bytes: Vec<f64> = upper.iter().map(|b| f64::from(u8::from(*b))).collect();
        let bools = HostTensor::from_f64(DType::Bool, vec![4, 4], &bytes).expect("as many as elements");
        assert_eq!(Band::of(&bools).map(|b| (b.first, b.last)), Some((Some(1), None)));
    }

    #[test]
    fn other_constants_are_no_bands() {
        let infinite = f64::NEG_INFINITY;
        let causal = |row, column| column <= row;
        assert_eq!(
            of_numbers(&[4, 4], infinite, |row, column| causal(row, column)
                && (row, column) != (3, 1)),
            None
        );
        assert_eq!(of_numbers(&[4, 4], infinite, |_, column| column < 2), None);
        assert_eq!(of_numbers(&[4, 4], infinite, |_, _| true), None);
        assert_eq!(of_numbers(&[4, 4], infinite, |_, _| false), None);
        assert_eq!(of_numbers(&[4, 4], -2.0, causal), None);
        assert_eq!(of_numbers(&[1, 4], infinite, causal), None);
        // The second image has another mask.
        let mut numbers = vec![0.0; 32];
        numbers[1] = infinite;
        let two = HostTensor::from_f64(DType::F32, vec![2, 4, 4], &numbers).expect("as many as elements");
        assert_eq!(Band::of(&two), None);
    }
}
