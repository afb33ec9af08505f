#!/bin/bash
# The example that docs/weights.md prints is the one that is built here, and does what the page says.
# Usage: weights_example_test.sh EXAMPLE SOURCE PAGE TOOL
set -eu
absolute() { if [ -e "$PWD/$1" ]; then echo "$PWD/$1"; else echo "$1"; fi; }
example=$(absolute "$1") source=$(absolute "$2") page=$(absolute "$3") tool=$(absolute "$4")
cd "$(mktemp -d "${TEST_TMPDIR:-/tmp}/eXXXXXX")"
fail() { echo "$1"; exit 1; }
expect() { [ "$1" = "$2" ] || fail "\"$1\" instead of \"$2\""; }

sed -n '/^```c$/,/^```$/p' "$page" | sed '/^```/d' >printed.c
diff printed.c "$source" || fail "the page prints another program than $source"

if [ "$(stat -f -c %T .)" = tmpfs ]; then class=tmpfs other=disk; else class=disk other=tmpfs; fi
"$tool" weights identity --example >id.json
expect "$("$example" "$PWD/store" $class id.json)" "local_production: layer.weight has 24 bytes, the last value is 6"
expect "$("$example" "$PWD/store" $class id.json)" "local_hit: layer.weight has 24 bytes, the last value is 6"
expect "$("$tool" weights verify --all --store store | cut -d' ' -f3)" "good,"
status=0
said=$("$example" "$PWD/elsewhere" $other id.json 2>&1) || status=$?
expect "$status" 1
grep -q "^domain: storage_class_mismatch: " <<<"$said" || fail "$said"
# preferred: a folder that cannot be used for the moment is a reason to load the model another way
expect "$("$example" "$PWD/no/parent" $class id.json)" "canonical_fallback: load the model without the store"
status=0
"$example" "$PWD/store" $class absent.json || status=$?
expect "$status" 2
echo "the example of docs/weights.md runs"
