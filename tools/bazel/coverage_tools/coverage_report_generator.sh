#!/bin/sh
# Bazel runs this once after `bazel coverage`: adds the tests' tracefiles into one. Bazel also lists baseline files
# without any line record, which lcov refuses; their sources are named on stderr, so that code which no test executed
# is not silently left out of the percentage.
set -eu
for word in "$@"; do
    case "$word" in
    --reports_file=*) reports=${word#*=} ;;
    --output_file=*) output=${word#*=} ;;
    esac
done
set --
while read -r file; do
    if grep -q '^DA:' "$file" 2>/dev/null; then set -- "$@" -a "$file"; fi
done <"$reports"
if [ $# -eq 0 ]; then
    : >"$output"
    exit 0
fi
/usr/bin/lcov --quiet --rc lcov_branch_coverage=1 "$@" -o "$output"
while read -r file; do sed -n 's/^SF://p' "$file"; done <"$reports" | sort -u | while read -r source; do
    grep -qxF "SF:$source" "$output" || echo "coverage: no test executed $source" >&2
done
