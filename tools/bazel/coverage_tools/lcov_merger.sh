#!/bin/sh
# Bazel runs this after each instrumented test; the Python beside it turns gcov's JSON into one lcov tracefile.
here=$(dirname "$(readlink -f "$0")")
exec /usr/bin/python3 "$here/lcov_merger.py" "$@"
