#!/bin/sh
# Canonical bytes and identity keys against Python's, on generated documents, and the tool's own refusals.
# Usage: canonical_test.sh CANONICAL_TOOL CANONICAL_TEST_PY
set -eu
if "$1" identities </dev/null 2>/dev/null; then echo "an unknown argument was accepted"; exit 1; fi
if echo '{}' | "$1" >/dev/full 2>/dev/null; then echo "a full device was taken for written"; exit 1; fi
exec python3 -B "$2" "$1"
