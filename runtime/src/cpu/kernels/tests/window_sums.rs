//! Sums under windows and of rows, against sums of one byte after the other.

use std::sync::Mutex;

use ir::host::product::{ConvShape, ImageStrides};

use super::{Rng, workspaces};
use crate::cpu::kernels::depthwise_integers::{DepthwiseIntegers, depthwise};
use crate::cpu::kernels::integers::SumTile;
use crate::cpu::kernels::window_sums::{RowSums, WindowSums, row_sums, window_sums};
use crate::cpu::kernels::workspace::SyncPtr;

fn bytes(rng: &mut Rng, count: usize) -> Vec<i8> {
    (0..count).map(|_| rng.next() as i8).collect()
}

/// The sum under the window of an output pixel, over the channels of a group.
fn under(s: &ConvShape, x: &[i8], padding: i8, [image, group, oy, ox]: [usize; 4]) -> i32 {
    let cg = s.c / s.groups;
    let mut sum = 0;
    for (ky, kx) in (0..s.kh).flat_map(|ky| (0..s.kw).map(move |kx| (ky, kx))) {
        let y = (oy * s.stride[0] + ky * s.dilation[0]).wrapping_sub(s.pad[0]);
        let x_at = (ox * s.stride[1] + kx * s.dilation[1]).wrapping_sub(s.pad[1]);
        for c in group * cg..(group + 1) * cg {
            sum += i32::from(match y < s.h && x_at < s.w {
                true => x[((image * s.h + y) * s.w + x_at) * s.c + c],
                false => padding,
            });
        }
    }
    sum
}

#[test]
fn windows_are_summed() {
    let mut rng = Rng(11);
    let mut ws = workspaces();
    for case in 0..120 {
        let groups = rng.pick(&[1, 1, 2, 3]);
        let c = groups * rng.pick(&[1, 3, 16, 37]);
        let kernel = [rng.pick(&[1, 3, 5]), rng.pick(&[1, 2, 3])];
        let pad = [(); 4].map(|()| rng.below(3));
        let stride = [1 + rng.below(3), 1 + rng.below(3)];
        let dilation = [1 + rng.below(2), 1 + rng.below(2)];
        let sizes = [1 + rng.below(2), 1 + rng.below(20), 1 + rng.below(40), c];
        let s = ConvShape::new(sizes, groups, kernel, stride, pad, dilation, groups);
        let (x, padding) = (bytes(&mut rng, s.n * s.h * s.w * s.c), rng.next() as i8);
        let (pixels, strides) = (s.out_h * s.out_w, ImageStrides::nhwc(s.h, s.w, s.c));
        for ws in &mut ws {
            let mut got = vec![i32::MIN; s.n * pixels * groups];
            let to = SyncPtr(got.as_mut_ptr());
            // Groups are neighbours.
            let out = |entry: usize| {
                let (image, group) = (entry / groups, entry % groups);
                let first = to.get().wrapping_add(image * pixels * groups + group);
                (SyncPtr(first), groups as isize)
            };
            let sums = WindowSums {
                shape: &s,
                strides: &strides,
                padding,
                input: SyncPtr(x.as_ptr().cast_mut()),
                out: &out,
            };
            // SAFETY: all are as large as the shape says.
            unsafe { window_sums(ws, &sums) };
            for (i, got) in got.iter().enumerate() {
                let (pixel, group) = (i / groups, i % groups);
                let (image, at) = (pixel / pixels, pixel % pixels);
                let want = under(&s, &x, padding, [image, group, at / s.out_w, at % s.out_w]);
                assert_eq!(*got, want, "case {case}: {s:?} at {i}");
            }
        }
    }
}

#[test]
fn rows_are_summed() {
    let mut rng = Rng(12);
    for (entries, m, k) in [(1, 1, 1), (3, 70, 64), (2, 5, 20_000), (1, 9, 0), (2, 0, 7)] {
        let x = bytes(&mut rng, entries * m * k);
        for ws in &mut workspaces() {
            let mut got = vec![i32::MIN; 2 * entries * m];
            let to = SyncPtr(got.as_mut_ptr());
            let from = |entry: usize| {
                let first = x.as_ptr().cast_mut().wrapping_add(entry * m * k);
                (SyncPtr(first), k as isize)
            };
            let out = |entry: usize| (SyncPtr(to.get().wrapping_add(2 * entry * m)), 2);
            let sums = RowSums {
                entries,
                m,
                k,
                from: &from,
                out: &out,
            };
            // SAFETY: all are as large as the sizes say.
            unsafe { row_sums(ws, &sums) };
            for row in 0..entries * m {
                let want: i32 = x[row * k..(row + 1) * k].iter().map(|v| i32::from(*v)).sum();
                assert_eq!(
                    [got[2 * row], got[2 * row + 1]],
                    [want, i32::MIN],
                    "{entries}x{m}x{k} row {row}"
                );
            }
        }
    }
}

/// Depthwise convolutions by ones, of few and of more taps than sums of 16 bits hold.
#[test]
fn channels_are_summed_by_themselves() {
    let mut rng = Rng(13);
    for (m, channels, taps) in [(5, 3, 9), (40, 77, 25), (2, 33, 300)] {
        let x: Vec<i8> = match taps {
            300 => vec![-128; m * channels * taps],
            _ => bytes(&mut rng, m * channels * taps),
        };
        let tell = |_: usize, row: usize, places: &mut [*const i8]| {
            for (tap, place) in places.iter_mut().enumerate() {
                *place = x[(row * taps + tap) * channels..].as_ptr();
            }
            1
        };
        for ws in &mut workspaces() {
            let got = Mutex::new(vec![0; m * channels]);
            let finish = |tile: &SumTile| {
                let mut got = got.lock().expect("no test thread panicked");
                for (i, row) in tile.rows.clone().enumerate() {
                    for (j, col) in tile.cols.clone().enumerate() {
                        // SAFETY: inside the tile.
                        got[row * channels + col] = unsafe { *tile.sums.add(i * tile.stride + j) };
                    }
                }
            };
            let convolution = DepthwiseIntegers {
                entries: 1,
                m,
                channels,
                weights: &vec![1; taps * channels],
                filters: None,
                ones: true,
                padding: 0,
                taps: &tell,
                step: 0,
                windows: None,
                finish: &finish,
                bytes: None,
            };
            // SAFETY: taps have all channels.
            unsafe { depthwise(ws, &convolution) };
            let got = got.into_inner().expect("no test thread panicked");
            for (i, got) in got.iter().enumerate() {
                let (row, channel) = (i / channels, i % channels);
                let byte = |tap: usize| i32::from(x[(row * taps + tap) * channels + channel]);
                assert_eq!(*got, (0..taps).map(byte).sum::<i32>(), "{m}x{channels}x{taps} at {i}");
            }
        }
    }
}
