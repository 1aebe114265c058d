#!/bin/bash
# Sets up ROCm 7.2's user space in a folder of its own, so that graphc's kernels are compiled by the real hiprtc on a
# machine with no AMD GPU and no ROCm. Nothing is installed on the host: Debian packages are unpacked with dpkg-deb, no
# maintainer script runs, and `DEST/rocm-run CMD...` runs a command with those libraries. Running this twice is free.
#
# usage: scripts/rocm-sysroot.sh [DEST]        DEST defaults to /opt/graphc-rocm, where graphc looks by itself
#
#   default      hip, hiprtc, comgr, device libraries and their headers      67 MB to fetch,  300 MB on disk
#   TOOLS=1      + LLVM 22's tools (llvm-objdump, llvm-mca, clang, lld)      45 MB more,      190 MB more
#   HEADERS=1    + the headers of rocBLAS and MIOpen, for generate-bindings.sh
#   LIBS=1       + rocBLAS, MIOpen, RCCL, hipBLASLt, without per-GPU data,
#                  rocFFT, rocRAND and rocSPARSE                            1.4 GB to fetch, 2 GB on disk
#   KEEP="gfx90a gfx942"   with LIBS=1: keep the Tensile and MIOpen data of these GPUs (0.7 GB each)
#   CACHE=DIR    apt's state and the .debs (default /var/cache/graphc-rocm)    DROP_DEBS=1   delete the .debs at the end
#   FORCE=1      unpack again although DEST is complete
#
# needs: Debian (amd64) with apt's sources readable, and root (rocm-run itself also runs for other users where
# unprivileged user namespaces are allowed). The packages come from Debian's experimental suite, with sid beneath it,
# fetched from the mirror that this machine's own apt sources name.
# exit: 0 complete; 2 this machine cannot do it (the message says what is missing); others: a step failed.
set -euo pipefail

fail() { echo "rocm-sysroot: $*" >&2; exit 2; }

case "${1:-}" in
  -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  -*) fail "no option $1; usage: scripts/rocm-sysroot.sh [DEST]" ;;
esac
[ $# -le 1 ] || fail "one folder at most, not $#; usage: scripts/rocm-sysroot.sh [DEST]"
DEST=$(realpath -m "${1:-/opt/graphc-rocm}")
CACHE=${CACHE:-/var/cache/graphc-rocm}
LIBS=${LIBS:-0} TOOLS=${TOOLS:-0} HEADERS=${HEADERS:-0} KEEP=${KEEP:-}

# Written anew each time (a sysroot may be older than this script), and renamed into place: others may be running it.
write_runner() {
cat > "$DEST/.rocm-run.new" <<'RUN'
#!/bin/sh
# rocm-run CMD ARGS...   runs CMD with ROCm's libraries. The cwd, /tmp, homes, /usr/local and every other folder of the host
# that is not part of the system (not the rest of /usr, /etc, /lib*, ...) are at the same paths. The mounts are private
# and vanish with the process; CMD replaces this shell, so its pid, signals and exit status are seen unchanged.
S=$(dirname "$(readlink -f "$0")")
[ $# -gt 0 ] || { echo "usage: rocm-run CMD ARGS..." >&2; exit 2; }
own=''; [ "$(id -u)" = 0 ] || own='--map-root-user'     # others need unprivileged user namespaces
export GRAPHC_SYSROOT_DIR="$S"
exec unshare $own --mount --propagation private sh -c '
  S=$GRAPHC_SYSROOT_DIR; unset GRAPHC_SYSROOT_DIR
  mount --rbind /proc "$S/proc" && mount --rbind /sys "$S/sys" && mount --rbind /dev "$S/dev" || exit 125
  for d in /*/ /usr/local/ /usr/src/; do
    d=${d%/}
    case $d in ""|/bin|/boot|/etc|/lib*|/proc|/sbin|/sys|/dev|/usr|/lost+found) continue;; esac
    [ -d "$S$d" ] || mkdir -p "$S$d" 2>/dev/null || continue
    mount --rbind "$d" "$S$d" 2>/dev/null || true
  done
  exec chroot "$S" /bin/sh -c "cd \"\$0\" 2>/dev/null || cd /; unset LD_LIBRARY_PATH LD_PRELOAD; exec \"\$@\"" "$PWD" "$@"' sh "$@"
RUN
  chmod 755 "$DEST/.rocm-run.new"
  mv -f "$DEST/.rocm-run.new" "$DEST/rocm-run"
}

# ---- is it there already? -------------------------------------------------------------------------------------------
# The stamp is written last and names what was asked for; a sysroot that has more than is asked for now will do too.
STAMP=$DEST/.graphc-sysroot
has() { grep -qx "$1" "$STAMP" 2>/dev/null; }
complete() {
  [ "${FORCE:-0}" != 1 ] && has compile && [ -x "$DEST/rocm-run" ] || return 1
  [ "$TOOLS" != 1 ] || has tools || return 1
  [ "$LIBS" != 1 ] || { has libs && has 'libs fft rand sparse'; } || return 1
  [ "$HEADERS" != 1 ] || has headers || return 1
  local gpu; for gpu in $KEEP; do has "keep $gpu" || return 1; done
}
done_already() {
  if [ -w "$DEST" ]; then write_runner; fi
  echo "rocm-sysroot: $DEST is complete"
  exit 0
}
if complete; then done_already; fi

# ---- can this machine do it? ----------------------------------------------------------------------------------------
[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || fail "ROCm's packages are for Linux on x86-64; this is $(uname -s) on $(uname -m)"
[ -f /etc/debian_version ] && grep -qsx 'ID=debian' /etc/os-release ||
  fail "this needs Debian (its packages are unpacked here). Elsewhere install ROCm itself: graphc finds /opt/rocm"
[ "$(id -u)" = 0 ] || fail "run as root: the sysroot gets system files, a chroot and bind mounts (sudo $0 ${1:-})"
for tool in apt-get dpkg-deb tar unshare chroot ldconfig flock awk; do
  command -v "$tool" >/dev/null || fail "'$tool' is missing (Debian: apt-get install apt dpkg tar util-linux coreutils libc-bin mawk)"
done

# The mirror and the key that this machine trusts for its main archive: first stanza of debian.sources, or the first
# `deb` line of the older sources.list.
uri='' key=''
for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/*.sources; do
  [ -z "$uri" ] && [ -f "$file" ] || continue
  uri=$(awk '/^URIs:/ {print $2; exit}' "$file")
  key=$(awk '/^Signed-By:/ {print $2; exit}' "$file")
done
if [ -z "$uri" ] && [ -f /etc/apt/sources.list ]; then
  uri=$(awk '$1 == "deb" {for (i = 2; i <= NF; i++) if ($i ~ /^[a-z+]+:\//) {print $i; exit}}' /etc/apt/sources.list)
fi
[ -n "$uri" ] || fail "no Debian mirror in /etc/apt/sources.list.d/*.sources or /etc/apt/sources.list"
[ -f "$key" ] || key=/usr/share/keyrings/debian-archive-keyring.gpg
[ -f "$key" ] || fail "no archive key at $key (apt-get install debian-archive-keyring)"

mkdir -p "$DEST" "$CACHE"/{lists/partial,archives/partial,empty}
exec 9>"$CACHE/.lock"; flock 9                    # two checkouts may ask at once; the second finds the work done
if complete; then done_already; fi
rm -f "$STAMP"

# ---- fetch, with an apt that shares no state with the host's ---------------------------------------------------------
: > "$CACHE/status"; : > "$CACHE/empty.pref"       # "nothing is installed": every dependency is resolved afresh
printf 'Types: deb\nURIs: %s\nSuites: sid experimental\nComponents: main\nSigned-By: %s\n' "$uri" "$key" > "$CACHE/sysroot.sources"
APT=(apt-get -qq
  -o Dir::Etc::sourcelist="$CACHE/sysroot.sources" -o Dir::Etc::sourceparts="$CACHE/empty"
  -o Dir::Etc::preferences="$CACHE/empty.pref" -o Dir::Etc::preferencesparts="$CACHE/empty"
  -o Dir::State="$CACHE" -o Dir::State::Lists="$CACHE/lists" -o Dir::State::status="$CACHE/status"
  -o Dir::Cache="$CACHE" -o Dir::Cache::archives="$CACHE/archives"
  -o APT::Sandbox::User=root -o APT::Keep-Downloaded-Packages=true
  -o Acquire::Check-Valid-Until=false              # a frozen mirror's index is past its date by design
  -o Acquire::Retries=3 -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)

# `with_deps` are resolved with their dependencies; `alone` are -dev packages and front ends whose dependencies
# (compilers, CMake files) would triple the download and are not used.
with_deps="libamdhip64-7 libhiprtc7 libhiprtc-builtins7 libamd-comgr3 rocm-device-libs-22 busybox-static"
alone="libamdhip64-dev libamd-comgr-dev"
[ "$LIBS" = 1 ] && with_deps="$with_deps librocblas5 libmiopen1 librccl1 libhipblaslt1 librocfft0 librocrand1 librocsparse1"
[ "$LIBS" = 1 ] && alone="$alone librccl-dev libhipblaslt-dev libhipblas-common-dev"
[ "$LIBS" = 1 ] || [ "$HEADERS" = 1 ] && alone="$alone librocblas-dev libmiopen-dev"
[ "$TOOLS" = 1 ] && { with_deps="$with_deps llvm-22 lld-22"; alone="$alone clang-22 libclang-cpp22"; }

echo "rocm-sysroot: reading package lists"
"${APT[@]}" update || fail "apt could not read the sid and experimental suites of this machine's Debian mirror"
echo "rocm-sysroot: fetching packages into $CACHE"
# shellcheck disable=SC2086  # lists of words
"${APT[@]}" -y --no-install-recommends -t experimental --download-only install $with_deps
# shellcheck disable=SC2086
(cd "$CACHE/archives" && "${APT[@]}" -t experimental download $alone)

# Exactly this selection, by the names apt gives the files: the cache may hold more, or older versions.
# shellcheck disable=SC2086
mapfile -t debs < <(
  "${APT[@]}" --simulate -y --no-install-recommends -t experimental install $with_deps |
    awk '/^Inst/ {print $2 "_" substr($3, 2)}' | sed 's/:/%3a/' |
    while read -r name; do ls "$CACHE/archives/$name"_*.deb; done
  # (from an empty folder: apt does not print a file that lies in the current one)
  (cd "$CACHE/empty" && "${APT[@]}" -t experimental --print-uris download $alone) | awk '{print $2}' |
    sed "s|^|$CACHE/archives/|")
for name in $alone; do
  case " ${debs[*]} " in *"/${name}_"*) ;; *) fail "apt did not name the file of $name" ;; esac
done
[ "${#debs[@]}" -ge 20 ] || fail "apt resolved only ${#debs[@]} packages; the mirror may lack the experimental suite"

# ---- unpack ----------------------------------------------------------------------------------------------------------
echo "rocm-sysroot: unpacking ${#debs[@]} packages into $DEST"
# The merged-/usr links come first, or a package that ships /lib/... would make a real folder of it.
mkdir -p "$DEST"/usr/{lib,lib64,bin,sbin,local,src} "$DEST"/{etc,tmp,proc,dev,sys,root,home}
for dir in lib lib64 bin sbin; do ln -sfn "usr/$dir" "$DEST/$dir"; done
chmod 1777 "$DEST/tmp"
for deb in "${debs[@]}"; do
  exclude=(--exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale --exclude=./usr/share/lintian)
  case ${deb##*/} in librocblas5_* | libhipblaslt1_* | libmiopen*)
    # Per-GPU kernels and tuning data are most of these packages and are never read without that GPU.
    keep=$(echo "${KEEP:-none}" | tr ' ' '|')
    dpkg-deb -c "$deb" | awk '$1 ~ /^-/ {print $6}' | grep -E 'gfx[0-9a-f]+' |
      grep -vE "($keep)([^0-9a-f]|e4|130|6e|68|78|\$)" > "$CACHE/exclude" || true
    exclude+=(-X "$CACHE/exclude") ;;
  esac
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$DEST" --no-wildcards "${exclude[@]}"
done

# What maintainer scripts would have done, as far as it is needed: a shell, the loader's cache, a user.
chroot "$DEST" /usr/bin/busybox --install -s /usr/bin 2>/dev/null || true
[ "$TOOLS" = 1 ] && ln -sfn ../lib/llvm-22/bin "$DEST/usr/bin/llvm22"
echo 'root:x:0:0::/root:/bin/sh' > "$DEST/etc/passwd"
echo 'root:x:0:' > "$DEST/etc/group"
echo '127.0.0.1 localhost' > "$DEST/etc/hosts"
ldconfig -r "$DEST"
# Mount points for the host's folders, made now so that rocm-run writes nothing (and works for other users).
for dir in /*/; do
  dir=${dir%/}
  case $dir in /bin | /boot | /etc | /lib* | /proc | /sbin | /sys | /dev | /usr | /lost+found) ;; *) mkdir -p "$DEST$dir" ;; esac
done

write_runner
"$DEST/rocm-run" ls /usr/lib/x86_64-linux-gnu/libhiprtc.so.7 >/dev/null ||
  fail "$DEST is unpacked, but rocm-run cannot enter it: mount namespaces seem to be forbidden here"

{ echo compile
  if [ "$TOOLS" = 1 ]; then echo tools; fi
  if [ "$LIBS" = 1 ]; then echo libs; echo 'libs fft rand sparse'; echo headers; elif [ "$HEADERS" = 1 ]; then echo headers; fi
  for gpu in $KEEP; do echo "keep $gpu"; done
} > "$STAMP"
if [ "${DROP_DEBS:-0}" = 1 ]; then rm -f "$CACHE"/archives/*.deb; fi
echo "rocm-sysroot: $DEST is complete, $(du -sh "$DEST" | cut -f1)"
