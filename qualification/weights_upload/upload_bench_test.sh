#!/usr/bin/env bash
# The bench runs through on the software device, compares every byte, and writes its JSON; wrong arguments are refused.
set -euo pipefail
bench=$(realpath "$1")
folder=$(mktemp -d "$TEST_TMPDIR/upload-bench.XXXXXX")
fail() {
    echo "upload_bench_test: $*" >&2
    exit 1
}

"$bench" --dir "$folder" --gib 0.01 --samples 1 --sweep --verify --threads 2 --json "$folder/result.json" | tee "$folder/out"
grep -q "no figure here says anything about a GPU" "$folder/out" || fail "it does not say that it means nothing"
python3 - "$folder/result.json" <<'PY'
import json, sys

result = json.load(open(sys.argv[1]))
assert result["program"] == "upload_bench" and result["device"]["kind"] == "software", result["device"]
assert result["weights"]["bytes"] > 1e6 and result["weights"]["files"] == 4, result["weights"]
assert result["cases"] and all(case["verified"] for case in result["cases"]), "a case was not compared"
assert all(len(case["whole_ns"]) == 2 for case in result["cases"]), "samples are missing"
assert len(result["ceilings"]) == 2 and result["parts"], "ceilings or parts are missing"
PY
[ -z "$(ls "$folder/store/artifacts")" ] || fail "it left the artifact"
"$bench" --dir "$folder" --gib 0.01 --samples 1 --keep >"$folder/out"
[ -n "$(ls "$folder"/store/artifacts/*/*.safetensors)" ] || fail "--keep kept nothing"

refused() {
    local rc=0
    "$bench" "$@" 2>"$folder/err" || rc=$?
    [ $rc -eq 2 ] || fail "$* gave exit status $rc"
    [ -s "$folder/err" ] || fail "$* said nothing"
}
refused
refused --dir "$folder" --gib x
refused --dir "$folder" --device tpu
refused --dir "$folder" --store "$folder/store"
refused --store "$folder/store"
refused --dir "$folder" surplus
rc=0
"$bench" --dir "$folder/missing" 2>"$folder/err" || rc=$?
[ $rc -eq 1 ] || fail "a missing folder gave exit status $rc"
chmod -R u+w "$folder/store"
