#!/usr/bin/env bash
# Runs restore_latency on the software device: both cases, with and without spinning, few samples; reads what it wrote;
# every exit status; and that neither folder nor Manager is left behind. No duration is looked at.
# Usage: restore_latency_test.sh PROGRAM MANAGER
set -uo pipefail
program=$(realpath "$1")
HOSTLANE_MANAGER=$(realpath "$2")
export HOSTLANE_MANAGER
python=/usr/bin/python3
[ -x "$python" ] || python=python3
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

# measure NAME OPTION …: a run that must succeed, with its results in NAME.json and its output in NAME.log.
measure() {
    local name=$1 got=0
    shift
    "$program" --device software --samples 4 --warmup 1 --spin-us 20 --json "$name.json" "$@" >"$name.log" 2>&1 || got=$?
    [ $got -eq 0 ] || fail "exit status $got of: restore_latency $*" "$name.log"
    grep -q 'no figure here says anything about a GPU' "$name.log" || fail "$name does not say what the software device means" "$name.log"
    nothing_left
    checks=$((checks + 1))
}

# refuse STATUS TEXT OPTION …: a run that must end with the status and say the text.
refuse() {
    local want=$1 text=$2 got=0
    shift 2
    "$program" "$@" >refused.log 2>&1 || got=$?
    [ "$got" -eq "$want" ] || fail "exit status $got, not $want, of: restore_latency $*" refused.log
    grep -qF -- "$text" refused.log || fail "no \"$text\" from: restore_latency $*" refused.log
    nothing_left
    checks=$((checks + 1))
}

measure all --slots 6
measure p6 --case p6 --spin off --slots 4 --route kernel --sms 2 --layer-events --ascending
measure restores --case p5 --spin off --restores-only

"$python" - all.json p6.json restores.json <<'EOF' || fail "the results are not what was measured"
import hashlib, json, os, sys
every, p6, restores = (json.load(open(name)) for name in sys.argv[1:])
assert [(c["case"], c["spin_us"]) for c in every["cases"]] == [("p5", 20), ("p5", 0), ("p6", 20), ("p6", 0)]
for case in every["cases"] + p6["cases"]:
    for subject in ("floor", "executor", "restore", "traced"):
        assert len(case[subject]["ns"]) == 4 and min(case[subject]["ns"]) > 0, subject
    for stages in zip(*(case["traced"]["stage_ns"][name] for name in ("ready", "dispatched"))):
        assert stages[0] <= stages[1], stages
    for stages in zip(*(case["traced"]["stage_ns"][name] for name in ("dequeued", "claimed", "enqueued", "drained"))):
        assert list(stages) == sorted(stages) and stages[-1] > 0, stages
    # executor and restore have each a warm-up and four samples, then come four traced ones: all of them were compared
    assert case["compared_bytes"] >= case["bytes"] * (5 + 5 + 4), case["compared_bytes"]
assert [case["bytes"] for case in p6["cases"]] == [36 * 128 * 4096]
assert set(restores["cases"][0]) & {"floor", "executor", "restore", "traced"} == {"restore"}
assert every["manager_sha256"] == hashlib.sha256(open(os.environ["HOSTLANE_MANAGER"], "rb").read()).hexdigest()
assert every["device"]["kind"] == "software" and every["machine"]["cpus"] > 0
EOF
checks=$((checks + 1))

refuse 2 "--samples 3: a number from 4" --samples 3
refuse 2 "--spin maybe: on, off or both is needed" --spin maybe
refuse 2 "--device tpu: cuda or software is needed" --device tpu
refuse 2 "--role is for processes that this program starts itself" --role manager
refuse 2 "extra is no option" extra
refuse 0 "usage: restore_latency" --help
refuse 1 "cannot write" --case p5 --spin off --samples 4 --warmup 0 --json no/such/folder.json
TMPDIR=no-such-folder refuse 1 "cannot make a folder" --case p5
TMPDIR=$(printf 'x%.0s' {1..90}) refuse 1 "TMPDIR is too long" --case p5
HOSTLANE_MANAGER=/no/such/manager refuse 1 "the Manager ended while it started: cannot run /no/such/manager" --case p5

echo "$checks checks passed"
