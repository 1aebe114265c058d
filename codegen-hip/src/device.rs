//! The device library: headers that generated kernels include by name.

use ir::op::UnaryOp;

/// Returns `(name as included, text)` of each header, in an order in which each follows what it includes.
pub fn headers() -> &'static [(&'static str, &'static str)] {
    HEADERS
}

/// Whether the library has a form `NAME_as<T>` of a function of `f32` that gives the digits of a 16-bit type, in fewer
/// instructions than the function itself.
pub fn has_short_form(op: UnaryOp) -> bool {
    matches!(op, UnaryOp::Gelu)
}

const HEADERS: &[(&str, &str)] = &[
    ("graphc_platform.hip.h", include_str!("device/graphc_platform.hip.h")),
    ("graphc_types.hip.h", include_str!("device/graphc_types.hip.h")),
    ("graphc_vector.hip.h", include_str!("device/graphc_vector.hip.h")),
    ("graphc_math.hip.h", include_str!("device/graphc_math.hip.h")),
    ("graphc_grid.hip.h", include_str!("device/graphc_grid.hip.h")),
    ("graphc_keys.hip.h", include_str!("device/graphc_keys.hip.h")),
    ("graphc_reduce.hip.h", include_str!("device/graphc_reduce.hip.h")),
    ("graphc_strip.hip.h", include_str!("device/graphc_strip.hip.h")),
    ("graphc_transpose.hip.h", include_str!("device/graphc_transpose.hip.h")),
    ("graphc_winograd.hip.h", include_str!("device/graphc_winograd.hip.h")),
    ("graphc_tile.hip.h", include_str!("device/graphc_tile.hip.h")),
    ("graphc_mma.hip.h", include_str!("device/graphc_mma.hip.h")),
    ("graphc_operand.hip.h", include_str!("device/graphc_operand.hip.h")),
    ("graphc_tiling.hip.h", include_str!("device/graphc_tiling.hip.h")),
    (
        "graphc_gemm_async.hip.h",
        include_str!("device/graphc_gemm_async.hip.h"),
    ),
    (
        "graphc_gemm_group.hip.h",
        include_str!("device/graphc_gemm_group.hip.h"),
    ),
    ("graphc_quantised.hip.h", include_str!("device/graphc_quantised.hip.h")),
    ("graphc_gemm.hip.h", include_str!("device/graphc_gemm.hip.h")),
    (
        "graphc_gemm_direct.hip.h",
        include_str!("device/graphc_gemm_direct.hip.h"),
    ),
    ("graphc_flash.hip.h", include_str!("device/graphc_flash.hip.h")),
    (
        "graphc_flash_lanes.hip.h",
        include_str!("device/graphc_flash_lanes.hip.h"),
    ),
    ("graphc_gemv.hip.h", include_str!("device/graphc_gemv.hip.h")),
    (
        "graphc_gemv_matrix.hip.h",
        include_str!("device/graphc_gemv_matrix.hip.h"),
    ),
    (
        "graphc_gemv_stream.hip.h",
        include_str!("device/graphc_gemv_stream.hip.h"),
    ),
    ("graphc_attention.hip.h", include_str!("device/graphc_attention.hip.h")),
    ("graphc_recurrent.hip.h", include_str!("device/graphc_recurrent.hip.h")),
    ("graphc_scan.hip.h", include_str!("device/graphc_scan.hip.h")),
    ("graphc_sort.hip.h", include_str!("device/graphc_sort.hip.h")),
];
