#!/bin/sh
# No shipped program or library has a fault point: no symbol of the hook, defined or wanted, no name of a point,
# no name of the board's variable. The same search must find all of them in programs of the *_faults build, else
# it proves nothing.
# Usage: production_test.sh POINTS_HEADER PRODUCTION_FILE… -- FAULTS_PROGRAM… -- FAULTS_LIBRARY…
set -eu
points=$1
shift
scratch=${TEST_TMPDIR:?}

# Steps and points by the list itself; a step's two names are its own with an ending.
sed -n 's/^ *S(\([a-z0-9_]*\)).*/\1_before\n\1_after/p; s/^ *X(\([a-z0-9_]*\)).*/\1/p
    s/^#define [A-Z_]*(X, S) X(\([a-z0-9_]*\)).*/\1/p' "$points" > "$scratch/names"
[ "$(wc -l < "$scratch/names")" -gt 20 ] || { echo "the list of points was not read"; exit 1; }
{ cat "$scratch/names"; echo HL_FAULT_BOARD; echo "fault board"; } > "$scratch/texts"

symbols() { nm "$1" 2> "$scratch/nm-errors" | grep -c ' hl_fault' || true; }
texts() { grep -a -o -F -f "$scratch/texts" "$1" | sort -u | wc -l; }

failed=0 looked=0
while [ "$1" != -- ]; do
    [ -s "$1" ] || { echo "$1 is missing or empty"; exit 1; }
    nm "$1" | grep -q . || { echo "$1 has no symbols to look at"; exit 1; }
    found=$(symbols "$1") named=$(texts "$1")
    [ "$found" = 0 ] && [ "$named" = 0 ] || { echo "$1: $found fault symbols, $named texts of faults"; failed=1; }
    looked=$((looked + 1))
    shift
done
shift
wanted=$(sort -u "$scratch/texts" | wc -l) canaries=0
while [ "$1" != -- ]; do
    found=$(symbols "$1") named=$(texts "$1")
    [ "$found" -gt 0 ] && [ "$named" = "$wanted" ] ||
        { echo "canary $1: $found fault symbols, $named of $wanted texts"; failed=1; }
    canaries=$((canaries + 1))
    shift
done
shift
for library; do
    [ "$(symbols "$library")" -gt 0 ] || { echo "canary $library: no fault symbol is wanted"; failed=1; }
    canaries=$((canaries + 1))
done
echo "$looked production files, $canaries canaries, $wanted texts each"
[ "$looked" -gt 3 ] && [ "$canaries" -gt 1 ] || { echo "too little was looked at"; exit 1; }
exit "$failed"
