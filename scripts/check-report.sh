#!/bin/bash
# Opens a page of `graphc report` in a headless Chromium, in light and in dark, and fails where the page reports an error.
#
#   scripts/check-report.sh PAGE.html FOLDER
#
# FOLDER gets light.png, dark.png (screenshots) and dom.html (the page as its script left it). Exit codes: 1 a fault of the page,
# 3 no browser (GRAPHC_BROWSER names one).
set -euo pipefail
page=$(realpath "$1") folder=$2
browser=${GRAPHC_BROWSER:-}
for name in chromium chromium-browser google-chrome; do
  if [ -z "$browser" ]; then browser=$(command -v "$name" || true); fi
done
if [ -z "$browser" ]; then
  echo "skipped: no browser (apt-get install --no-install-recommends chromium)"
  exit 3
fi
mkdir -p "$folder"
own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT
open() {
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --no-first-run \
    --user-data-dir="$own/profile" --enable-logging=stderr --window-size=1500,3600 --virtual-time-budget=10000 "$@"
}
for theme in light dark; do
  open --screenshot="$folder/$theme.png" "file://$page#$theme" 2> "$own/$theme.log"
  if grep -a ':CONSOLE' "$own/$theme.log"; then
    echo "the page writes to the console ($theme)" >&2
    exit 1
  fi
  test -s "$folder/$theme.png" || { echo "no screenshot ($theme)" >&2; exit 1; }
done
open --dump-dom "file://$page#light" > "$folder/dom.html" 2> /dev/null
grep -q 'data-ready="yes"' "$folder/dom.html" || { echo "the page's script did not come to its end" >&2; exit 1; }
if grep -aEo '(src|href)="(https?:)?//[^"]*"' "$folder/dom.html"; then
  echo "the page refers to the network" >&2
  exit 1
fi
