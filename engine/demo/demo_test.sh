#!/usr/bin/env bash
# Runs the demo in one process on the software device: every shipped geometry in each layout that it can have, by each route; every
# option that changes where bytes lie; every exit status. Then reads what it wrote, and draws a trace.
# Usage: demo_test.sh PROGRAM TIMELINE CONFIG …
set -uo pipefail
program=$(realpath -s "$1") timeline=$(realpath -s "$2")
shift 2
configs=("$@")
out=${TEST_TMPDIR:?}
python=/usr/bin/python3
[ -x "$python" ] || python=python3
checks=0

fail() {
    echo "FAILED: $1"
    [ $# -gt 1 ] && tail -n 5 "$2"
    exit 1
}

# restore NAME OPTION …: a run that must succeed, with its results and trace in NAME.json and NAME.trace.
restore() {
    local name=$1
    shift
    "$program" --in-process --device software --json-out "$out/$name.json" --trace-out "$out/$name.trace" "$@" >"$out/$name.log" 2>&1 ||
        fail "exit status $? of: hostlane-demo $*" "$out/$name.log"
    grep -q '^every byte compared: OK' "$out/$name.log" || fail "$name does not say that every byte was compared"
    checks=$((checks + 1))
}

# refuse STATUS TEXT OPTION …: a run that must end with the status and say the text.
refuse() {
    local want=$1 text=$2 got=0
    shift 2
    "$program" --in-process "$@" >"$out/refused.log" 2>&1 || got=$?
    [ "$got" -eq "$want" ] || fail "exit status $got, not $want, of: hostlane-demo $*" "$out/refused.log"
    grep -qF -- "$text" "$out/refused.log" || fail "no \"$text\" from: hostlane-demo $*" "$out/refused.log"
    checks=$((checks + 1))
}

qwen=
for config in "${configs[@]}"; do
    name=$(basename "$config" .json)
    layouts="split contiguous fused page-first"
    grep -q '"kv_lora_rank"' "$config" && layouts="mla page-first"
    [ "$name" = qwen3-8b ] && qwen=$config
    for layout in $layouts; do
        for route in direct kernel auto; do
            restore "geometry-$name-$layout+$route" --model-config "$config" --pages 2 --layout "$layout" --route "$route"
        done
    done
done
[ -n "$qwen" ] || fail "no qwen3-8b.json among: ${configs[*]}"

small=(--model-config "$qwen" --pages 3 --page-tokens 2)
for route in direct kernel; do
    restore "token+$route" "${small[@]}" --block-order token --route "$route"
    restore "constant+$route" "${small[@]}" --pages 6 --pitch constant --route "$route"
    restore "fp8+$route" "${small[@]}" --element-bytes 1 --route "$route"
    restore "rank+$route" "${small[@]}" --block-order token --tp-size 4 --tp-rank 3 --store-full-heads --route "$route"
    restore "parts+$route" "${small[@]}" --part-bytes 4096 --sms 1 --route "$route"
done
restore "runs" "${small[@]}" --warmup 1 --runs 3 --seed 18446744073709551615
HOSTLANE_CONFIGS=$(dirname "$qwen") restore "default-config" --pages 1

refuse 2 "--pages 0" --pages 0
refuse 2 "no such option" --nonsense
refuse 0 "Exit status" --help
refuse 3 "E_SYSTEM" --device software --model-config "$out/missing.json"
refuse 3 "what to do" --device software "${small[@]}" --json-out "$out/no/such/folder.json"
refuse 3 "cannot write the trace" --device software "${small[@]}" --trace-out "$out/no/such/folder.json"
refuse 3 "E_INVALID" --device software "${small[@]}" --layout mla
HOSTLANE_CUDA_LIBRARY=$out/missing.so refuse 3 "E_NO_DEVICE" --device cuda "${small[@]}"
sed 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": "many"/' "$qwen" >"$out/bad.cfg"
refuse 3 "num_hidden_layers" --device software --model-config "$out/bad.cfg"
cp "$qwen" "$out/"$'\xff.cfg'
refuse 3 "not UTF-8" --device software --pages 1 --model-config "$out/"$'\xff.cfg' --json-out "$out/unwritten"
if [ "$(awk '/^HugePages_Free/ { print $2 }' /proc/meminfo)" = 0 ]; then
    refuse 3 "vm.nr_hugepages" --device software "${small[@]}" --huge
fi

for picture in png svg; do
    "$python" "$timeline" "$out/runs.trace" "$out/timeline.$picture" || fail "timeline.py cannot draw a $picture"
    [ "$(stat -c %s "$out/timeline.$picture")" -gt 10000 ] || fail "timeline.$picture is nearly empty"
done

"$python" - "$out" <<'PYTHON' || fail "the written files do not hold what they must"
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
digests, seen = {}, 0
for path in sorted(folder.glob("*.json")):
    result = json.loads(path.read_text())
    trace = json.loads(path.with_suffix(".trace").read_text())
    case, _, route = path.stem.partition("+")
    if route:
        digests.setdefault(case, {})[route] = result["state_digest"]
    layers = result["geometry"]["layers"]
    assert result["schema"] == "hostlane-demo/1" and result["device"]["kind"] == "software", path
    assert len(result["host"]["program_sha256"]) == 64 and result["host"]["page_bytes"] >= 4096, path
    assert len(result["runs"]) == result["options"]["runs"], path
    assert len(result["ceiling"]["samples_ns"]) >= 5, path
    assert sum(layer["bytes"] for layer in result["layers"]) == result["geometry"]["payload_bytes"] > 0, path
    wanted = {"direct": ["direct"], "kernel": ["kernel"]}.get(result["options"]["route"], ["direct", "kernel"])
    assert all(layer["route"] in wanted for layer in result["layers"]), path
    for run in result["runs"]:
        assert len(run["ready_ns"]) == layers and run["ready_ns"] == sorted(run["ready_ns"]), path
        assert all(start >= ready for start, ready in zip(run["consumer_start_ns"], run["ready_ns"])), path
        assert run["total_ns"] == run["ready_ns"][-1], path
    for row in (2, 3):
        spans = [event for event in trace if event["ph"] == "X" and event["tid"] == row]
        assert len(spans) == layers and all(span["dur"] >= 0 for span in spans), path
    stages = {event["name"] for event in trace if event["ph"] == "X" and event["tid"] == 1}
    assert {"fill", "publish", "compile plan", "submit part", "verify restored"} <= stages, path
    assert sum(event["ph"] == "i" and event["tid"] == 2 for event in trace) == layers, path
    assert {event["name"] for event in trace if event["ph"] == "M"} == {"process_name", "thread_name"}, path
    seen += 1
assert json.loads((folder / "parts+direct.json").read_text())["plan"]["parts"] > 1
assert json.loads((folder / "constant+direct.json").read_text())["plan"]["ranges"] == 0, "constant pitch is all runs"
for case, by_route in digests.items():
    assert len(by_route) > 1 and len(set(by_route.values())) == 1, (case, by_route)
print(f"{seen} results and traces read, {len(digests)} states equal by every route")
PYTHON
echo "$checks runs as expected"
