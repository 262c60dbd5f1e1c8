#!/usr/bin/env bash
# Builds the consumers from installed trees inside a minimal Debian, as root: minimal_root.sh BUILD ROOT [KIND...]
#
# ROOT is made with debootstrap if it is not there yet, of the release $DEBIAN_RELEASE (bookworm) from $DEBIAN_MIRROR: a minimal system, a compiler, CMake, pkg-config,
# and what the documentation says that users of ferry need. It gets the tree that BUILD installs, another one with a static
# library without CUDA devices, and the files of this checkout that the consumers are made of; nothing else of this machine
# can be seen there. Nothing stays mounted.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
build=$(readlink -f "$1")
root=$(readlink -m "$2")
shift 2
[ "$#" -gt 0 ] || set -- pkgconfig cmake cxx23 parts static
packages=g++,cmake,make,pkg-config,python3,libcereal-dev,libfmt-dev,doctest-dev,libssl-dev
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
release=${DEBIAN_RELEASE:-bookworm}

[ "$(id -u)" -eq 0 ] || { echo "minimal_root.sh: making a root and changing into it needs root" >&2; exit 1; }
case "$root" in / | /usr | /home | /root | /tmp) echo "minimal_root.sh: $root is no place for a root" >&2; exit 1 ;; esac
if [ ! -f "$root/.minimal-root" ]; then
  if [ -e "$root" ] && [ -n "$(ls -A "$root")" ]; then
    echo "minimal_root.sh: $root exists and was not made here" >&2
    exit 1
  fi
  mkdir -p "$root"
  # Where the release files of a mirror are older than they may be (a snapshot), apt must be told; debootstrap does not care.
  if ! debootstrap --variant=minbase --include="$packages" "$release" "$root" "$mirror" >"$root.log" 2>&1; then
    tail -n 20 "$root.log" >&2
    echo "minimal_root.sh: debootstrap failed (whole output: $root.log)" >&2
    exit 1
  fi
  echo "$packages" >"$root/.minimal-root"
fi

rm -rf "$root/opt/ferry" "$root/opt/ferry-static" "$root/ferry"
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
# install_tree BUILD NAME: what it installs, at /opt/NAME
install_tree() {
  DESTDIR=$staging/$2 meson install -C "$1" --no-rebuild --quiet
  local package
  package=$(find "$staging/$2" -name ferry.pc)
  mv "$staging/$2$(sed -n 's/^prefix=//p' "$package")" "$root/opt/$2"
}
install_tree "$build" ferry
static=$staging/build-static
meson setup "$static" "$here" -Ddefault_library=static -Dcuda=disabled -Dtests=false -Dexamples=false -Dtools=false \
  -Doptimization=0 -Ddebug=false >"$staging/setup.log" 2>&1 || { cat "$staging/setup.log" >&2; exit 1; }
ninja -C "$static" >"$staging/build.log" 2>&1 || { tail -n 30 "$staging/build.log" >&2; exit 1; }
install_tree "$static" ferry-static
mkdir "$root/ferry"
(cd "$here" && tar c README.md tests/packaging tests/test_kit/own_transport_test.cpp examples/07_own_backend) | tar x -C "$root/ferry"

unshare --mount sh -c '
  root=$1
  shift
  mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" || exit
  exec chroot "$root" /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    python3 /ferry/tests/packaging/consumers.py --prefix /opt/ferry --static-prefix /opt/ferry-static "$@"
' sh "$root" "$@"
