#!/usr/bin/env bash
# Rehearses the suite for GPUs as it runs on a bare machine with one, which this machine is not: gpu_root.sh ROOT [COMMAND...]
#
# ROOT is made with debootstrap if it is not there yet, of the release $DEBIAN_RELEASE (bookworm) from $DEBIAN_MIRROR: a minimal system with a
# compiler, Ninja, and Meson as a Python package without its command. It sees the CUDA Toolkit of this machine, the headers of the
# libraries that ferry needs (in a folder that CPATH names), and the files that git tracks; no network, and root as its user. COMMAND
# (./dev --no-install gpu) must get as far as to say that there is no GPU. Nothing stays mounted.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
[ "$#" -ge 1 ] || { sed -n '2s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
root=$(readlink -m "$1")
shift
[ "$#" -gt 0 ] || set -- ./dev --no-install gpu
packages=g++,ninja-build,meson
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
release=${DEBIAN_RELEASE:-bookworm}

fail() { echo "gpu_root.sh: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "making a root and changing into it needs root"
# An nvcc of PATH may be a script that runs that of a toolkit elsewhere.
nvcc=$(command -v nvcc || true)
toolkit=
for place in "${CUDA_PATH:-}" "${nvcc:+$(dirname "$(dirname "$(readlink -f "${nvcc:-/}")")")}" /usr/local/cuda; do
  [ -n "$place" ] && [ -x "$place/bin/nvcc" ] && [ -f "$place/include/cuda_runtime_api.h" ] || continue
  toolkit=$(readlink -f "$place")
  break
done
[ -n "$toolkit" ] || fail "there is no CUDA Toolkit to rehearse with (looked in CUDA_PATH, where nvcc of PATH is, and in /usr/local/cuda)"
case "$root" in / | /usr | /home | /root | /tmp) fail "$root is no place for a root" ;; esac
if [ ! -f "$root/.gpu-root" ]; then
  command -v debootstrap >/dev/null || fail "debootstrap is not installed"
  if [ -e "$root" ] && [ -n "$(ls -A "$root")" ]; then fail "$root exists and was not made here"; fi
  mkdir -p "$root"
  if ! debootstrap --variant=minbase --include="$packages" "$release" "$root" "$mirror" >"$root.log" 2>&1; then
    tail -n 20 "$root.log" >&2
    fail "debootstrap failed (whole output: $root.log)"
  fi
  rm "$root/usr/bin/meson"
  echo "$packages" >"$root/.gpu-root"
fi

rm -rf "$root/ferry" "$root/opt/headers"
mkdir -p "$root/ferry" "$root/opt/headers" "$root/usr/local/cuda"
for name in asio asio.hpp cereal fmt doctest; do
  [ -e "/usr/include/$name" ] || fail "there is no /usr/include/$name; ./dev install-packages build"
  cp -r "/usr/include/$name" "$root/opt/headers/"
done
(cd "$here" && git ls-files -z | tar c --null --files-from=-) | tar x -C "$root/ferry"

status=0
unshare --mount --net sh -c '
  root=$1
  toolkit=$2
  shift 2
  mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --bind "$toolkit" "$root/usr/local/cuda" || exit
  exec chroot "$root" /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin CPATH=/opt/headers \
    sh -c "cd /ferry && \"\$@\"" sh "$@"
' sh "$root" "$toolkit" "$@" >"$root.output" 2>&1 || status=$?
cat "$root.output"
if [ "$status" -eq 0 ]; then fail "'$*' succeeded: is there a GPU? Run ./dev gpu here"; fi
grep -q '^CUDA kernels: yes$' "$root.output" || fail "'$*' ended with status $status before it said whether kernels are compiled"
grep -q '^no GPU: ' "$root.output" || fail "'$*' ended with status $status, and not because there is no GPU"
grep -q '^dev: the suite for GPUs needs a GPU' "$root.output" || fail "'$*' did not say what the suite needs"
echo "gpu_root.sh: the suite got as far as a machine without a GPU lets it"
