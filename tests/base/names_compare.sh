#!/bin/sh
# Builds names_print.cpp with every available GCC and Clang and compares the output of the programs: a method and a
# signature must have the same name and fingerprint with every compiler.
# usage: names_compare.sh SOURCE_ROOT BUILD_ROOT WORK_DIR
set -eu
root=$1
work=$3
flags=$(python3 "$root/tests/support/compile_flags.py" "$2" "$root/tests/base/type_name_test.cpp")
mkdir -p "$work"
first=
compared=0
for compiler in g++ clang++-21 clang++-20 clang++-19 clang++-18 clang++-17 clang++-16 clang++; do
  command -v "$compiler" >/dev/null 2>&1 || continue
  if [ "$compiler" = clang++ ]; then
    [ "$compared" -ge 2 ] && continue
    major=$("$compiler" -dumpversion | cut -d. -f1)
    [ "$major" -ge 16 ] || continue
  fi
  # shellcheck disable=SC2086  # the flags are words
  "$compiler" $flags -O0 "$root/tests/base/names_print.cpp" "$root/src/base/type_name.cpp" \
    "$root/src/base/method_name.cpp" "$root/src/base/error.cpp" "$root/src/base/thread_exit.cpp" -o "$work/names_$compiler"
  "$work/names_$compiler" >"$work/names_$compiler.txt"
  compared=$((compared + 1))
  if [ -z "$first" ]; then
    first=$compiler
  elif ! diff -u "$work/names_$first.txt" "$work/names_$compiler.txt"; then
    echo "$first and $compiler disagree about names" >&2
    exit 1
  else
    echo "$first and $compiler agree"
  fi
done
if [ "$compared" -lt 2 ]; then
  echo "only $compared compiler(s) here: nothing to compare"
  exit 77
fi
