#!/bin/sh
# Fetches NVRTC, NVIDIA's runtime compiler, from the PyPI package nvidia-cuda-nvrtc-cu12: what graphc needs to make code for
# sm_90. No GPU, no driver and no CUDA toolkit is needed. The package is under NVIDIA's license.
#
#   scripts/nvrtc.sh [FOLDER]          default: /opt/graphc-nvrtc, where graphc looks; needs python3 with pip; 90 MB
#
# Prints the folder, which then holds lib/libnvrtc.so.12 and its built-in headers. Does nothing when they are there already.
# In another FOLDER, GRAPHC_NVRTC names it to graphc.
set -eu
case "${1:-}" in
  -h | --help) sed -n "2,/^set -/{/^set -/d;s/^# \\{0,1\\}//p}" "$0"; exit 0 ;;
  -*) echo "nvrtc: no option $1; usage: scripts/nvrtc.sh [FOLDER]" >&2; exit 2 ;;
esac
folder=${1:-/opt/graphc-nvrtc}
version=12.9.86

sums() {
    cat <<END
7c67c6b51ea0e0279634cebd676ff7efda1674806444520c84430ad5c35fe625  $folder/lib/libnvrtc.so.12
6507cf33450cfb22970c2c1e7aa8e7c0a33e39d864720277b05f61a92791e2e8  $folder/lib/libnvrtc-builtins.so.12.9
END
}
check() { sums | sha256sum --check --status 2>/dev/null; }

if ! check; then
    [ "$(uname -m)" = x86_64 ] || { echo "nvrtc: for x86-64 only; install CUDA instead" >&2; exit 1; }
    command -v python3 >/dev/null || { echo "nvrtc: python3 is missing: apt-get install python3-pip" >&2; exit 1; }
    python3 -m pip --version >/dev/null 2>&1 || { echo "nvrtc: pip is missing: apt-get install python3-pip" >&2; exit 1; }
    download=$(mktemp -d)
    trap 'rm -rf "$download"' EXIT
    echo "nvrtc: downloading nvidia-cuda-nvrtc-cu12 $version (90 MB)" >&2
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$download" "nvidia-cuda-nvrtc-cu12==$version" >&2
    python3 -m zipfile -e "$download"/nvidia_cuda_nvrtc_cu12-*.whl "$download/wheel"
    mkdir -p "$folder/lib"
    for file in libnvrtc.so.12 libnvrtc-builtins.so.12.9; do
        mv -f "$download/wheel/nvidia/cuda_nvrtc/lib/$file" "$folder/lib/$file"
    done
    check || { echo "nvrtc: the libraries in $folder/lib do not have the expected SHA-256 sums" >&2; exit 1; }
fi
echo "$folder"
