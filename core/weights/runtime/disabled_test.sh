#!/bin/bash
# A disabled runtime touches nothing: between the probe's two marks the kernel sees no call that names a path
# or opens anything. The same probe in preferred mode is the canary: its calls must be seen.
# Usage: disabled_test.sh PROBE
set -eu
probe=$PWD/$1
[ -x "$probe" ] || probe=$1
cd "$(mktemp -d "${TEST_TMPDIR:-/tmp}/dXXXXXX")"
# The leak detector does not work under a tracer.
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"

fail() { echo "$1"; cat trace resolution 2>/dev/null; exit 1; }

# Runs the probe and keeps the calls of its resolution.
trace() {
    local expected=$1 status=0
    shift
    strace -f -o trace "$probe" "$@" 2>err || status=$?
    [ "$status" = "$expected" ] || fail "the probe ended with $status, not $expected: $(cat err)"
    sed -n '/resolution begins/,/resolution ends/p' trace | grep -v '"resolution' >resolution || true
    grep -q 'resolution ends' trace || fail "the trace does not hold the whole resolution"
}
paths='"/|open|creat\(|stat|access|mkdir|unlink|rename|readlink|chmod|statfs|flock|socket|connect|execve|clone'

mkdir root
trace 0 disabled "$PWD/root"
if grep -E "$paths" resolution; then fail "a disabled runtime touched the above"; fi
[ -z "$(ls -A root)" ] || fail "a disabled runtime wrote into the folder"

trace 0 disabled "$PWD/absent"
if grep -E "$paths" resolution; then fail "a disabled runtime touched the above"; fi
[ ! -e absent ] || fail "a disabled runtime made the folder"

trace 1 preferred "$PWD/root"
grep -q 'openat(.*"root"' resolution || fail "the canary: a preferred runtime was not seen at its folder"
echo "disabled: $(wc -l <trace) calls in all, of a resolution that touches nothing"
