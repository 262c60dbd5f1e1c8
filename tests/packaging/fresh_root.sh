#!/usr/bin/env bash
# Runs the two commands of the README, as root, on a machine that has nothing installed: fresh_root.sh RELEASE ROOT [COMMAND...]
#
# RELEASE is a Debian release (bookworm, trixie). ROOT is made with debootstrap from $DEBIAN_MIRROR if it is not there yet, as a minimal
# system without a compiler, and kept: a second run finds the packages that the first one installed. The files that git tracks are copied
# to /ferry there, where COMMAND (./dev demo and then ./dev test) runs with an environment of its own. Nothing stays mounted.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
[ "$#" -ge 2 ] || { sed -n '2s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
release=$1
root=$(readlink -m "$2")
shift 2
[ "$#" -gt 0 ] || set -- sh -c './dev demo && ./dev test'
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

[ "$(id -u)" -eq 0 ] || { echo "fresh_root.sh: making a root and changing into it needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "fresh_root.sh: debootstrap is not installed" >&2; exit 1; }
case "$root" in / | /usr | /home | /root | /tmp) echo "fresh_root.sh: $root is no place for a root" >&2; exit 1 ;; esac
if [ ! -f "$root/.fresh-root" ]; then
  if [ -e "$root" ] && [ -n "$(ls -A "$root")" ]; then
    echo "fresh_root.sh: $root exists and was not made here" >&2
    exit 1
  fi
  mkdir -p "$root"
  if ! debootstrap --variant=minbase "$release" "$root" "$mirror" >"$root.log" 2>&1; then
    tail -n 20 "$root.log" >&2
    echo "fresh_root.sh: debootstrap failed (whole output: $root.log)" >&2
    exit 1
  fi
  echo "$release" >"$root/.fresh-root"
fi
if [ "$(cat "$root/.fresh-root")" != "$release" ]; then
  echo "fresh_root.sh: $root is of the release $(cat "$root/.fresh-root")" >&2
  exit 1
fi

rm -rf "$root/ferry"
mkdir "$root/ferry"
(cd "$here" && git ls-files -z | tar c --null --files-from=-) | tar x -C "$root/ferry"
cp /etc/resolv.conf "$root/etc/resolv.conf"

unshare --mount sh -c '
  root=$1
  shift
  mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" || exit
  exec chroot "$root" /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c "cd /ferry && \"\$@\"" sh "$@"
' sh "$root" "$@"
