#!/usr/bin/env bash
# Runs the demo's processes on the software device: the scenario for every shipped geometry and the options that change
# where bytes lie; replays of traces with an endless and with a small cache; every exit status; and what is left behind.
# Usage: demo_process_test.sh PROGRAM MANAGER CONFIG …
set -uo pipefail
program=$(realpath "$1")
HOSTLANE_MANAGER=$(realpath "$2")
export HOSTLANE_MANAGER
shift 2
configs=()
for config in "$@"; do configs+=("$(realpath -s "$config")"); done
# A socket's path holds 107 bytes: all folders are named from here.
cd "${TEST_TMPDIR:?}" || exit 1
mkdir -p sockets
export TMPDIR=sockets
checks=0

fail() {
    echo "FAILED: $1"
    [ $# -gt 1 ] && tail -n 12 "$2"
    exit 1
}

nothing_left() {
    [ -z "$(ls -A sockets)" ] || fail "left behind in TMPDIR: $(find sockets)"
}

# pass NAME OPTION …: a run that must succeed, with its results in NAME.json and its output in NAME.log.
pass() {
    local name=$1 got=0
    shift
    "$program" --device software --json-out "$name.json" "$@" >"$name.log" 2>&1 || got=$?
    [ $got -eq 0 ] || fail "exit status $got of: hostlane-demo $*" "$name.log"
    grep -qE '^every (restored )?byte compared: OK' "$name.log" || fail "$name does not say that every byte was compared" "$name.log"
    nothing_left
    checks=$((checks + 1))
}

# refuse STATUS TEXT OPTION …: a run that must end with the status and say the text.
refuse() {
    local want=$1 text=$2 got=0
    shift 2
    "$program" "$@" >refused.log 2>&1 || got=$?
    [ "$got" -eq "$want" ] || fail "exit status $got, not $want, of: hostlane-demo $*" refused.log
    grep -qF -- "$text" refused.log || fail "no \"$text\" from: hostlane-demo $*" refused.log
    nothing_left
    checks=$((checks + 1))
}

qwen=
for config in "${configs[@]}"; do
    name=$(basename "$config" .json)
    [ "$name" = qwen3-8b ] && qwen=$config
    pass "scenario-$name" --model-config "$config" --pages 2
    pass "scenario-$name-page-first" --model-config "$config" --pages 2 --layout page-first --route kernel
done
[ -n "$qwen" ] || fail "no qwen3-8b.json among: ${configs[*]}"

small=(--model-config "$qwen" --pages 3 --page-tokens 2)
for route in direct kernel auto; do
    pass "scenario-$route" "${small[@]}" --route "$route" --block-order token
done
pass scenario-rank "${small[@]}" --tp-size 4 --tp-rank 3 --store-full-heads
pass scenario-fused "${small[@]}" --layout fused --element-bytes 1 --seed 9 --sms 2
grep -q 'killed (SIGKILL)' scenario-rank.log || fail "it does not say that engine A was killed" scenario-rank.log
grep -q 'Manager was killed (SIGKILL): engine B reports E_PEER' scenario-rank.log || fail "it does not say that engine B survived" scenario-rank.log
grep -q 'no performance meaning' scenario-rank.log || fail "it does not say what the software device means"

"$program" --trace-generate generated.jsonl --trace-requests 120 --seed 5 >generate.log 2>&1 || fail "cannot generate a trace" generate.log
replay=(--model-config "$qwen" --trace generated.jsonl --trace-scale 18432)
pass replay-exact "${replay[@]}"
pass replay-first "${replay[@]}" --trace-requests 10 --layout fused --route kernel
pass replay-small "${replay[@]}" --cache-bytes 262144
pass replay-auto --model-config "$qwen" --trace generated.jsonl --trace-requests 3 --trace-scale auto
grep -q 'in every request as many as the reference says' replay-exact.log || fail "no exact hits" replay-exact.log
grep -q 'smaller than the working set' replay-small.log || fail "a small cache is not said to be one" replay-small.log

refuse 2 "--runs: it means nothing without --in-process or --trace" --runs 2
refuse 2 "--pages: it means nothing with --trace" --trace generated.jsonl --pages 2
refuse 2 "--trace-requests: it means nothing with --in-process" --in-process --trace-requests 2
refuse 2 "--trace-scale 0" --trace generated.jsonl --trace-scale 0
refuse 2 "no such option" --socket x
refuse 2 "processes that the demo starts itself" --role restore
refuse 0 "Exit status" --help
refuse 3 "cannot write" --trace-generate no/such/folder.jsonl
refuse 3 "cannot open" --device software --model-config "$qwen" --trace missing.jsonl
{ head -n 4 generated.jsonl && echo '{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1, "x"]}'; } >malformed.jsonl
refuse 3 "line 5: hash_ids[1]" --device software --model-config "$qwen" --trace malformed.jsonl
refuse 3 "cannot write the results" --device software "${small[@]}" --json-out no/such/folder.json
refuse 3 "cannot open" --device software --model-config missing.json
HOSTLANE_CUDA_LIBRARY=missing.so refuse 3 "E_NO_DEVICE" --device cuda "${small[@]}"
HOSTLANE_MANAGER=missing refuse 3 "HOSTLANE_MANAGER names missing" --device software "${small[@]}"
HOSTLANE_MANAGER=/bin/false refuse 3 "the Manager ended before it listened" --device software "${small[@]}"
TMPDIR=$(printf 'x%.0s' {1..120}) refuse 3 "TMPDIR is too long" --device software "${small[@]}"
TMPDIR=missing refuse 3 "cannot make the folder" --device software "${small[@]}"

if [ "$(awk '/^HugePages_Free/ { print $2 }' /proc/meminfo)" = 0 ]; then
    refuse 3 "the Manager said" --device software "${small[@]}" --huge
fi

# Ends the background processes that are named by the descriptors below: a Manager, and a publisher that waits.
finish() {
    [ -z "${publisher:-}" ] || { kill -KILL "$publisher" && wait "$publisher"; } 2>/dev/null
    [ -z "${manager:-}" ] || { kill -TERM "$manager" && wait "$manager"; } 2>/dev/null
    publisher='' manager=''
    rm -rf sockets/canary
}
trap finish EXIT

# The canaries: engines that expect other bytes, or an empty cache, must find what they find wrong. Their Manager is ours;
# a pipe stands for the parent that they wait for.
mkdir -m 0700 sockets/canary
mkfifo reports commands
exec 4<>commands
"$HOSTLANE_MANAGER" --socket sockets/canary/manager.sock --arena-bytes 64M --software true >canary-manager.log 2>&1 &
manager=$!
until [ -S sockets/canary/manager.sock ]; do kill -0 $manager || fail "the Manager ended" canary-manager.log; done
# role STATUS TEXT ROLE OPTION …
role() {
    local want=$1 text=$2 got=0
    shift 2
    "$program" --device software --socket sockets/canary/manager.sock --role "$@" <&4 3>reports.jsonl >role.log 2>&1 || got=$?
    [ "$got" -eq "$want" ] || fail "exit status $got, not $want, of the role $*" role.log
    grep -qF -- "$text" role.log || fail "no \"$text\" from the role $*" role.log
    checks=$((checks + 1))
}
"$program" --device software --socket sockets/canary/manager.sock --role publish "${small[@]}" --seed 1 <&4 3>reports 2>publisher.log &
publisher=$!
read -r report <reports || fail "the publisher reports nothing" publisher.log
[[ $report == *'"event":"published"'* ]] || fail "the publisher reports $report"
role 1 "MISMATCH  consumer's checksum" restore "${small[@]}" --seed 2
role 1 "MISMATCH  resident blocks" restore "${small[@]}" --seed 1 --pages 4
role 0 "" replay "${replay[@]}" --seed 1
role 1 "MISMATCH  restored page" replay "${replay[@]}" --seed 2
role 1 "MISMATCH  hits of a request" replay "${replay[@]}" --seed 1
role 1 "MISMATCH  more hits than an endless cache" replay "${replay[@]}" --seed 1 --cache-bytes 1
role 3 "no such role" conductor
finish
nothing_left

# An interrupt ends everything that was started.
"$program" --trace-generate long.jsonl --trace-requests 100000 >generate.log 2>&1 || fail "cannot generate a trace" generate.log
exec 5< <(exec "$program" --device software --model-config "$qwen" --trace long.jsonl 2>interrupted.log)
interrupted=$!
while read -r line <&5 && [[ $line != manager* ]]; do :; done
kill -TERM $interrupted
got=0
wait $interrupted || got=$?
[ $got -eq 3 ] || fail "exit status $got, not 3, of an interrupted replay" interrupted.log
grep -q 'E_CANCELLED' interrupted.log || fail "an interrupted replay does not say so" interrupted.log
nothing_left

python=/usr/bin/python3
[ -x "$python" ] || python=python3
"$python" - <<'PYTHON' || fail "the written files do not hold what they must"
import json, pathlib

stages = ["ready", "dispatched", "dequeued", "claimed", "enqueued", "drained"]
seen = 0
for path in sorted(pathlib.Path(".").glob("scenario-*.json")):
    result = json.loads(path.read_text())
    published, restored = result["engine_a"]["published"], result["engine_b"]["restored"]
    layers = result["geometry"]["layers"]
    assert result["schema"] == "hostlane-demo-processes/1" and result["device"]["kind"] == "software", path
    assert result["manager"]["killed_by"] == result["engine_a"]["killed_by"] == "SIGKILL", path
    assert result["every_byte_equal"] is True, path
    blocks = sum(group["blocks"] for group in result["geometry"]["groups"])
    assert published["blocks"] == restored["blocks"] == restored["hits"] == blocks > 0, path
    assert restored["bytes"] == result["geometry"]["payload_bytes"] > 0, path
    assert list(restored["stage_ns"]) == stages, path
    times = [restored["stage_ns"][name] for name in stages]
    assert times == sorted(times) and 0 < times[-1] == restored["drained_ns"] <= restored["wall_ns"], (path, times)
    assert len(restored["ready_ns"]) == layers and restored["ready_ns"] == sorted(restored["ready_ns"]), path
    assert all(a >= b for a, b in zip(restored["consumer_start_ns"], restored["ready_ns"])), path
    survived = result["engine_b"]["survived"]
    assert survived["health"] == "E_PEER" and survived["new_query"] == "E_PEER", path
    seen += 1
assert seen >= 11, seen

def reference(count):
    known, hits, blocks = set(), 0, 0
    for line in pathlib.Path("generated.jsonl").read_text().splitlines()[:count]:
        ids = json.loads(line)["hash_ids"]
        prefix = next((i for i, one in enumerate(ids) if one not in known), len(ids))
        hits, blocks = hits + prefix, blocks + len(ids)
        known.update(ids)
    return hits, blocks, len(known)

for name, count, exact in (("exact", None, True), ("first", 10, True), ("small", None, False)):
    result = json.loads(pathlib.Path(f"replay-{name}.json").read_text())
    replay, scale = result["replay"], result["scale"]
    hits, blocks, unique = reference(count)
    assert replay["reference_hits"] == hits and replay["blocks"] == blocks, name
    assert replay["unique_blocks"] == unique and replay["exact"] is exact, name
    assert (replay["hits"] == hits) if exact else (0 < replay["hits"] < hits), (name, replay["hits"], hits)
    assert replay["restored_bytes"] == replay["hits"] * scale["replayed_block_bytes"], name
    assert replay["published_blocks"] == unique if exact else replay["published_blocks"] > unique, name
    assert scale["real_block_bytes"] == 36 * 512 * 4096, scale
    assert replay["restore_p50_ns"] <= replay["restore_p95_ns"] <= replay["restore_p99_ns"], name
    assert list(replay["stage_median_ns"]) == stages, name
print(f"{seen} scenarios and 3 replays read")
PYTHON
echo "$checks runs as expected"
