#!/bin/sh
# The benchmark runs on the software device, compares every byte, and writes every way and size.
# Usage: gather_bench_test.sh BINARY
set -eu
report=${TEST_TMPDIR:-/tmp}/gather_bench.json
"$1" --device software --bytes 4194304 --runs 2 --json "$report"
for word in contiguous loads layers batch single rows 2048 1048576 '"ratio"'; do
    grep -q "$word" "$report" || { echo "$word is not in the report"; exit 1; }
done
if "$1" --device software --bytes 7 2>/dev/null; then echo "7 bytes were accepted"; exit 1; fi
if "$1" --device software --json /nowhere/report.json --bytes 1048576 --runs 1 >/dev/null 2>&1; then
    echo "a report that cannot be written was taken for written"
    exit 1
fi
