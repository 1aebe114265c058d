//! Products of single rows whose B is one of several: rows that have the same one are a product of several rows.
//!
//! ```text
//! rows     a b c d e        matrices 4 0 4 2 4
//! products {d}·B2, {b}·B0   {a, c, e}·B4
//! ```
//!
//! So each matrix that a row has is read once, and no other. Products of as many rows run together.

use super::driver::{Dest, Place, Problem, RowMap, run};
use super::{Elem, MatMut};
use crate::cpu::kernels::convert;
use crate::cpu::kernels::workspace::{SyncPtr, Workspace};

/// Runs a problem of one row an entry, whose operands `fill` and `place` give by the entry's number. The products are
/// summed up at `sums`, one entry after the other, and stored from there.
///
/// # Safety
/// As for [`run`], of products of up to as many rows as there are entries; `sums` is valid for a row an entry.
pub(super) unsafe fn run_chosen(
    ws: &Workspace,
    p: &Problem<'_>,
    matrices: &[usize],
    sums: SyncPtr<f32>,
    c: &MatMut<'_>,
) {
    let mut rows = vec![0usize; matrices.iter().max().map_or(0, |most| most + 1)];
    matrices.iter().for_each(|matrix| rows[*matrix] += 1);
    let mut order: Vec<usize> = (0..matrices.len()).collect();
    order.sort_by_key(|entry| (rows[matrices[*entry]], matrices[*entry]));
    let mut first = 0;
    while let Some(entry) = order.get(first) {
        let m = rows[matrices[*entry]];
        let same = order[first..].iter().take_while(|entry| rows[matrices[**entry]] == m);
        let count = same.count();
        let together = &order[first..first + count];
        let fill = |product: usize, row0: usize, rows: usize, table: *mut *const f32| {
            for (i, entry) in together[product * m + row0..][..rows].iter().enumerate() {
                // SAFETY: the caller has room for `rows` pointers.
                (p.fill)(*entry, 0, 1, unsafe { table.add(i) });
            }
        };
        let place = |product: usize| {
            let at = (first + product * m) * p.n;
            Place {
                // SAFETY: a row for each entry.
                c: unsafe { sums.get().add(at) }.cast(),
                ..(p.place)(together[product * m])
            }
        };
        let problem = Problem {
            batch: count / m,
            m,
            fill: &fill,
            place: &place,
            dest: Dest {
                elem: Elem::F32,
                rows: RowMap::Linear(p.n as isize),
                col_stride: 1,
                apart: p.dest.apart,
            },
            ..*p
        };
        // SAFETY: the caller's contract.
        unsafe { run(ws, &problem) };
        first += count;
    }
    let (to, batch) = (SyncPtr(c.ptr), c.batch);
    ws.parallel_ranges(order.len(), 16, &|range, _, _| {
        for at in range {
            // SAFETY: a row of C for each entry, by the caller's contract.
            unsafe {
                let to = to.get().offset(batch.at(order[at]) * c.elem.size() as isize);
                convert::scatter(p.isa, to, sums.get().add(at * p.n), c.elem, c.col_stride, p.n);
            }
        }
    });
}
