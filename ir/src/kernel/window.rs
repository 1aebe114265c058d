//! Windows: loops that fold over what a window of an image has inside it.

use serde::{Deserialize, Serialize};

use super::{AxisId, ExprId, Loops, ParamId};
use crate::dim::Dim;
use crate::graph::op::PoolKind;
use crate::types::Scalar;

/// Loops that fold over a window: pooling, and convolutions of few channels a group.
///
/// It computes what its loops compute. The first statement folds `element` over the taps, as a guarded value:
/// `select(inside, element, outside)`, which a convolution multiplies by the tap's weight. What this body adds is the
/// guard taken apart, so that a device may bound the taps once for a window instead of asking at each, and may read
/// once what neighbouring windows share.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct WindowBody {
    /// The fold; where `counts`, a fold of how many taps count; then what is made of both.
    pub loops: Loops,
    /// What the fold is.
    pub fold: WindowFold,
    /// How the window moves, along each axis of the image that has several taps or is guarded; outermost first.
    pub along: Vec<WindowAxis>,
    /// The element of a tap, without the guard: over `parallel` and the taps.
    pub element: ExprId,
    /// Says that the second statement counts taps: those inside of the input, or with
    /// [`PoolKind::Average::count_padding`] of the padded input. Without it, all taps count.
    pub counts: bool,
    /// Set when this pools images that lie in a buffer: the same as the statements, for engines with a direct form.
    pub images: Option<WindowImages>,
}

/// How a window's elements become one number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum WindowFold {
    /// The largest element, or the sum of those that are inside.
    Pool(PoolKind),
    /// The sum of all elements, each times its weight.
    Weighted {
        /// Over `parallel` and the taps, in the type of the sum.
        weight: ExprId,
        /// The element of a tap that is not inside.
        outside: Scalar,
    },
}

/// How a window moves along an axis: tap `t` of output `o` is at the position `o · stride + t · dilation − pad_low`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct WindowAxis {
    /// The axis of the taps; `None` for one tap.
    pub taps: Option<AxisId>,
    /// The axis of the outputs; `None` for one output.
    pub outputs: Option<AxisId>,
    /// At least 1.
    pub stride: i64,
    /// At least 1.
    pub dilation: i64,
    pub pad_low: i64,
    pub pad_high: i64,
    /// Positions that the input has: those from 0 on are inside.
    pub size: Dim,
    /// Says that the fold is guarded against positions below 0, and against those from `size` on. Where it is not,
    /// there are none.
    pub guarded: [bool; 2],
    /// Says that the count is guarded against positions from `size + pad_high` on, which rounding the number of outputs
    /// up may reach. Only where padding counts.
    pub beyond: bool,
}

/// A window's images, where its elements are loaded as they are from one buffer.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct WindowImages {
    pub source: ParamId,
    /// The axes of images and of channels; `None` for one.
    pub image: Option<AxisId>,
    pub channel: Option<AxisId>,
    /// Where positions of the input are in `source`.
    pub from: ImageAccess,
    /// What is pooled of one window, made of what the statements fold.
    pub pooled: ExprId,
    /// Where that is stored as it is; `None` where statements make more of it.
    pub target: Option<ImageTarget>,
}

/// The buffer of a pool's results, and where outputs are in it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ImageTarget {
    pub param: ParamId,
    pub at: ImageAccess,
}

/// Where the elements of images are: the first one, and how many elements it is from each to the next.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ImageAccess {
    /// The element of the first image and channel at position 0 of every axis.
    pub base: Dim,
    pub image: Dim,
    pub channel: Dim,
    /// Along each [`WindowBody::along`].
    pub along: Vec<Dim>,
}

impl WindowBody {
    /// Returns the axes of the taps, outermost first.
    pub fn taps(&self) -> Vec<AxisId> {
        self.along.iter().filter_map(|a| a.taps).collect()
    }

    /// Returns what kind of pool it is; `None` for a convolution.
    pub fn pool(&self) -> Option<PoolKind> {
        match self.fold {
            WindowFold::Pool(kind) => Some(kind),
            WindowFold::Weighted { .. } => None,
        }
    }

    /// Returns the expressions that it names beside its statements.
    pub fn exprs(&self) -> Vec<ExprId> {
        let mut exprs = vec![self.element];
        if let WindowFold::Weighted { weight, .. } = self.fold {
            exprs.push(weight);
        }
        exprs.extend(self.images.as_ref().map(|images| images.pooled));
        exprs
    }

    /// Calls `f` for each expression that it names beside its statements.
    pub fn map_exprs(&mut self, mut f: impl FnMut(&mut ExprId)) {
        f(&mut self.element);
        if let WindowFold::Weighted { weight, .. } = &mut self.fold {
            f(weight);
        }
        if let Some(images) = &mut self.images {
            f(&mut images.pooled);
        }
    }

    /// Returns the sizes that its facts name.
    pub fn sizes(&self) -> Vec<&Dim> {
        let mut sizes: Vec<&Dim> = self.along.iter().map(|a| &a.size).collect();
        let images = self.images.as_ref();
        let to = images.and_then(|images| images.target.as_ref());
        for access in images.map(|i| &i.from).into_iter().chain(to.map(|t| &t.at)) {
            sizes.extend([&access.base, &access.image, &access.channel]);
            sizes.extend(&access.along);
        }
        sizes
    }
}
