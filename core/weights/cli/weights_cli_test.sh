#!/bin/bash
# `hostlane weights`, each command for people and as JSON, every refusal, and imports of good, odd and broken
# folders. Usage: weights_cli_test.sh TOOL MAKE_FOLDER TERMINAL JSON_MEMBERS
set -eu
absolute() { if [ -e "$PWD/$1" ]; then echo "$PWD/$1"; else echo "$1"; fi; }
tool=$(absolute "$1")
make_folder=$(absolute "$2")
terminal=$(absolute "$3")
keys_file=$(absolute "$4")
cd "$(mktemp -d "${TEST_TMPDIR:-/tmp}/wXXXXXX")"
store=$PWD/store
if [ "$(stat -f -c %T .)" = tmpfs ]; then class=tmpfs; else class=disk; fi
export HOSTLANE_WEIGHTS=$store
export PYTHONDONTWRITEBYTECODE=1

fail() { echo "$1"; cat out err 2>/dev/null; exit 1; }
# Runs the tool, expects its exit status, keeps its output in out and err.
weights() {
    local expected=$1 status=0
    shift
    "$tool" weights "$@" >out 2>err || status=$?
    [ "$status" = "$expected" ] || fail "hostlane weights $* ended with $status, not $expected"
}
says() { grep -q -- "$1" "$2" || fail "\"$1\" is not in $2"; }
says_not() { if grep -q -- "$1" "$2"; then fail "\"$1\" is in $2"; fi; }
plain() { if LC_ALL=C grep -q "[$(printf '\001-\010\013-\037\177')]" "$1"; then fail "$1 has control characters"; fi; }
# keys NAME EXPRESSION: the members of an object in out are those that hostlane-weights(1) lists under NAME.
keys() {
    [ "$(value "' '.join(sorted($2))")" = "$(sed -n "s/^$1 //p" "$keys_file" | tr ' ' '\n' | LC_ALL=C sort | xargs)" ] ||
        fail "the members of $1 are not those of $keys_file: $(value "sorted($2)")"
}
silent() { [ ! -s "$1" ] || fail "$1 is not empty"; }
# value EXPRESSION: of the JSON in out, called v.
value() { python3 -I -S -c 'import json, sys; v = json.load(open("out")); print(eval(sys.argv[1]))' "$1"; }
is() { [ "$(value "$1")" = "$2" ] || fail "$1 is $(value "$1"), not $2"; }
folder() { python3 -I -S "$make_folder" "$@"; }
# identity FILE MODEL: one that a person filled in.
identity() { "$tool" weights identity --example | sed "s/REPLACE-ME-organisation/$2/; s/REPLACE-ME/mine/" >"$1"; }
# A failure for people: stage, code, what to do; and the same as JSON.
fails_with() {
    local stage=$1 code=$2 text=$3
    shift 3
    weights 1 "$@"
    says "$stage: $code: " err
    says "$text" err
    says "what to do: " err
    silent out
    weights 1 "$@" --json
    silent err
    keys failed v; keys failure 'v["failure"]'
    is '[v["ok"], v["failure"]["stage"], v["failure"]["code"], v["failure"]["remedy"] != "", type(v["failure"]["details"])]' \
        "[False, '$stage', '$code', True, <class 'dict'>]"
}
untouched() { [ -z "$(ls -A "$store/artifacts" "$store/tmp" | grep -E '^[0-9a-f]{64}')" ] || fail "something is left in the store"; }

# --- usage ---
weights 2; says "a command is missing" err
weights 2 dance; says 'no command "dance"' err
weights 2 ls --colour; says 'no flag "--colour"' err
weights 2 ls --store; says 'missing after "--store"' err
weights 2 ls --store ""; says "empty" err
weights 2 ls now; says "too many arguments" err
weights 2 ls --reason x; says "--reason is no flag of ls" err
weights 2 import; says "the folder" err
weights 2 import x; says "--identity FILE" err
weights 2 import x --identity y --storage-class tape; says "not disk or tmpfs" err
for size in x -1 1Q 16777216T 99999999999999999999 1KiBB; do weights 2 import x --identity y --max-store-bytes "$size"; says "no size" err; done
weights 2 ls --wait soon; says "no number" err
weights 0 ls -h; says "^Usage: hostlane weights COMMAND" out; silent err
weights 2 ls --wait 0; says "at least 1" err
weights 2 show; says KEY err
weights 2 verify; weights 2 verify k --all
weights 2 deny k; says "--reason" err
weights 2 deny --reason x
weights 2 clean; weights 2 clean k --quarantined n
weights 2 identity; weights 2 identity x --example
weights 0 --help; says "import DIR --identity FILE" out
weights 0 import --help
"$tool" --help | grep -q "hostlane weights --help" || fail "the tool does not name weights"

# --- identities ---
weights 0 identity --example; cp out example.json; says '"schema_version": 1' example.json
weights 0 identity example.json
grep -qE '^[0-9a-f]{64}$' out || fail "no key"
identity id.json org
weights 0 identity id.json; key=$(cat out)
weights 0 identity id.json --json; keys identity v; is 'v["key"]' "$key"; is 'v["identity"]["source"]["model_id"]' org/model
echo '{"schema_version":1}' >bad.json
fails_with configuration invalid_config bad.json identity bad.json
fails_with configuration invalid_config absent.json identity absent.json
head -c 1100000 /dev/zero | tr '\0' ' ' >long.json
fails_with configuration invalid_config "longer than" identity long.json

# --- before there is a store ---
folder one one
for command in ls where "show $key" "verify --all" "deny $key --reason x" "clean $key"; do
    # shellcheck disable=SC2086
    fails_with domain domain_unavailable "there is no store at /" $command
done
fails_with configuration invalid_config placeholder import one --identity example.json
fails_with configuration invalid_config bad.json import one --identity bad.json
fails_with production producer_failed absent import absent --identity id.json
[ ! -e "$store" ] || fail "a refused import made a store"
if [ $class = disk ]; then other=tmpfs; else other=disk; fi
fails_with domain storage_class_mismatch "" import one --identity id.json --storage-class $other
fails_with domain domain_unavailable "" import one --identity id.json --storage-class $class --store /dev/null/x
[ ! -e "$store/artifacts" ] || fail "a refused import made a store"

# --- import of one file ---
weights 0 import one --identity id.json --storage-class $class --max-store-bytes 64M --min-free-bytes 4K --domain-id here
says "imported $key" out; says "tensors 3, files 1, 36 B" out
says "importing tensors 3, files 1, 36 B" err; says "100%" err; says "model.safetensors: copied" err; says publishing err
weights 0 import one --identity id.json; says "already there: $key" out; silent err
weights 0 import one --identity id.json --json; silent err; is 'v["origin"]' hit; is 'v["key"]' "$key"
keys import v; keys tolerated 'v["tolerated"]'
fails_with domain domain_policy_mismatch "" import one --identity id.json --storage-class $class
# the tool's artifact is a safetensors file that Python reads
python3 - "$store/artifacts/$key/model.safetensors" <<'P'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + n])
begin, end = header["w.a"]["data_offsets"]
assert data[8 + n + begin:8 + n + end] == bytes((i * 7 + 1) % 251 for i in range(8)), "other bytes"
assert header["scale"]["shape"] == [] and header["w.b"]["dtype"] == "F32"
P

# --- ls, where, show, verify ---
weights 0 ls; says "^STATE" out; says "^ready .*$key .*org/model at mine-immuta" out; says "$store holds" out
weights 0 ls --json; keys ls v; keys inventory 'v["inventory"][0]'; is 'len(v["inventory"])' 1; is 'v["inventory"][0]["state"]' ready; is 'v["max_artifact_bytes"]' None
weights 0 where; says "root  *$store" out; says "store at most  *64.0 MiB" out; says "to be left free  *4.0 KiB" out; says 'node "here"' out
weights 0 where --json; keys where v; is 'v["storage_class"]' $class; is 'v["min_free_bytes"]' 4096; is '"inventory" in v' False
weights 0 show "$key"; says "state  *ready" out; says "folder  *$store/artifacts/$key" out; says "model  *org/model at" out; says "model.safetensors" out; says_not "w.b" out
weights 0 show "$key" --tensors; says "w.b  *torch.float32  *\[2,3\]  *24 B  weight" out; says "scale  *torch.float32  *\[\] " out
weights 0 show "$key" --json; keys show v; keys manifest 'v["manifest"]'; is 'v["valid"]' True; is 'len(v["manifest"]["tensors"])' 3
is 'v["manifest"]["tensors"][0]["kind"] + v["manifest"]["tensors"][0]["role"]' parameterweight
weights 0 verify "$key"; says "$key  good, .*/s)" out
weights 0 verify --all --hash-threads 2; says "good" out
weights 0 verify "$key" --json; keys verify v; keys artifacts 'v["artifacts"][0]'; is 'v["ok"] and v["artifacts"][0]["valid"]' True
absent=$(printf '%064d' 0)
fails_with lookup local_miss "no artifact $absent" show "$absent"
fails_with lifecycle invalid_config "no artifact key" show KEY
fails_with lifecycle local_miss "" deny "$absent" --reason x
fails_with lifecycle local_miss "" clean "$absent"
weights 1 verify "$absent"; says "local_miss" out
weights 1 verify "$absent" --json; keys artifacts-bad 'v["artifacts"][0]'; is 'v["ok"]' False; is 'v["artifacts"][0]["failure"]["code"]' local_miss
fails_with lifecycle invalid_config "" clean --quarantined ../x

# --- a corrupt artifact: found, denied by hand, replaced, removed from quarantine ---
chmod u+w "$store/artifacts/$key/model.safetensors"
printf x | dd of="$store/artifacts/$key/model.safetensors" bs=1 seek=240 conv=notrunc status=none
chmod 0444 "$store/artifacts/$key/model.safetensors"
weights 1 verify "$key"; says "BAD" out; says "validation: checksum_mismatch" out; says "what to do" out
weights 1 verify --all --json; is 'v["artifacts"][0]["failure"]["code"]' checksum_mismatch
weights 0 ls --json; is 'v["inventory"][0]["state"]' ready # verifying changed nothing
weights 0 deny "$key" --reason "disk 3 is dying"; says "denied $key" out
weights 0 deny "$key" --reason again --json; keys deny v; is 'v["denied"]' "$key"
weights 0 ls; says "^denied .*disk 3 is dying" out
weights 0 show "$key"; says "not to be used" out; says "artifact_denied" out; says "org/model" out
weights 0 show "$key" --json; keys show-invalid v; is 'v["failure"]["code"]' artifact_denied
weights 0 verify --all; says "0 good, 0 bad" out
weights 0 import one --identity id.json --quiet; says "imported $key" out; silent err
weights 0 ls --json; is 'sorted(e["state"] for e in v["inventory"])' "['quarantined', 'ready']"
name=$(value '[e["name"] for e in v["inventory"] if e["state"] == "quarantined"][0]')
weights 0 ls; says "quarantined .*$name" out
weights 0 clean --quarantined "$name"; says "removed $name" out
weights 0 clean "$key" --json; keys clean v; is 'v["removed"]' "$key"
weights 0 ls; says "is empty" out
weights 0 ls --json; is 'v["inventory"]' "[]"

# --- sharded folders, links ---
folder sharded sharded
weights 0 import sharded --identity id.json --json; is 'v["files"]' 2; is 'v["tensor_bytes"]' 29; content=$(value 'v["content_sha256"]')
weights 0 show "$key"; says "model-00002-of-00002.safetensors" out
weights 0 clean "$key"
folder cache cached
weights 0 import cache/snapshots/0123 --identity id.json --json; is 'v["content_sha256"]' "$content"
weights 0 clean "$key"
weights 0 import sharded --identity id.json --aligned --json; is 'v["content_sha256"]' "$content"
weights 0 clean "$key"
folder total wrong_total
weights 0 import total --identity id.json; says "total_size is 1, the tensors have 29 bytes" err
weights 0 clean "$key"

# --- odd files of others are taken, and it says what was odd ---
folder odd odd
weights 0 import odd --identity id.json
for oddity in "white space before the header" "no multiple of 8" "not aligned" "unknown fields" "__metadata__"; do says "note: model.safetensors: .*$oddity" err; done
weights 0 clean "$key"
weights 0 import odd --identity id.json --json
silent err
is 'v["tolerated"]' "{'leading_space': 1, 'unaligned_header': 1, 'misaligned': 1, 'unknown_fields': 1, 'null_metadata': 1, 'duplicate_metadata': 0}"
weights 0 verify "$key"
weights 0 clean "$key"

# --- folders that are refused: by name, and nothing stays ---
refused() { folder "$1" "$1"; fails_with production producer_failed "$2" import "$1" --identity id.json; untouched; }
refused missing 'tensor "d" of .* is missing in model-00002'
refused extra 'tensor "b" of model-00001.* is not in'
refused elsewhere 'tensor "b" is in model-00001.*has it in model-00002'
refused twice 'tensor "a" is in model-00002.*has it in model-00001'
refused shards_only "holds neither model.safetensors nor"; says 'snapshots/REVISION' out
refused no_file "cannot open model-00002"
refused escaping "weight_map"
refused no_map 'no object "weight_map"'
refused bad_json "model.safetensors.index.json: byte"
refused both "which is meant"
refused truncated "model.safetensors: "
refused garbage "model.safetensors: "
refused no_tensor "holds no tensor"
refused pipe "no regular file"
mkdir nothing; fails_with production producer_failed "neither model.safetensors nor" import nothing --identity id.json
mkdir broken; ln -s nowhere broken/model.safetensors
fails_with production producer_failed "cannot open model.safetensors" import broken --identity id.json
untouched

# --- names of others: kept as they are, and shown so that no terminal obeys them ---
folder strange strange
weights 0 import strange --identity <(sed 's/org.model/x\\u001b[31m\\u009b/' id.json) --json; strange=$(value 'v["key"]')
weights 0 show "$strange" --tensors; says 'a/../b?\[31m?  ' out; says "model  *x?\[31m??" out; plain out
weights 0 show "$strange" --json; is '[t["name"] for t in v["manifest"]["tensors"]]' "['..', 'a/../b\\x1b[31m\\n']"
weights 0 ls; says "^ready .* x?\[31m?? at mine" out; plain out
weights 0 deny "$strange" --reason $'line\n\e[2Jtwo'; weights 0 ls; says "^denied .*line??\[2Jtwo" out; plain out
weights 0 clean "$strange"

# --- a folder of other things is not made a store ---
mkdir others; touch others/thesis.txt
fails_with configuration invalid_config "holds thesis.txt" import one --identity id.json --store others --storage-class $class
[ "$(ls -A others)" = thesis.txt ] || fail "something was made in a folder of others"
mkdir -p begun/locks begun/lost+found # a creation that was interrupted
weights 0 import one --identity id.json --store begun --storage-class $class --quiet

# --- output that cannot be written is a failure ---
for command in where "where --json" ls --help; do
    status=0
    "$tool" weights $command >/dev/full 2>err || status=$?
    [ $status = 1 ] || fail "weights $command on a full device ended with $status"
    says "cannot write to standard output" err
done

# --- limits ---
folder big big 4000000
fails_with capacity artifact_too_large "max_artifact_bytes" import big --identity id.json --store "$PWD/small" --storage-class $class --max-artifact-bytes 1M
fails_with capacity store_limit_exceeded "max_store_bytes" import big --identity id.json --store "$PWD/full" --storage-class $class --max-store-bytes 1M --admission serialized
weights 0 where --store full; says "one at a time" out # a relative folder
fails_with capacity insufficient_capacity "" import big --identity id.json --store "$PWD/tight" --storage-class $class --min-free-bytes 4096T

# --- progress: a bar on a terminal ---
python3 "$terminal" "$tool" weights import big --identity id.json >screen || fail "on a terminal"
says '\[####.*100%  3.8 MiB of 3.8 MiB .*/s' screen; says "imported $key" screen
says_not "^ *10%" screen
python3 "$terminal" "$tool" weights verify --all >screen || fail "verify on a terminal"
says "hashing $key" screen; says "$key  good" screen
weights 0 import big --identity id.json --json; is 'v["origin"]' hit

# --- an artifact in use, and one that is being built ---
exec 9<"$store/locks/$key.artifact.lock"
flock -s 9
fails_with lifecycle active_lease "" clean "$key"
weights 0 show "$key"; says "artifact held" out
flock -u 9
exec 9<"$store/locks/$key.build.lock"
flock -x 9
fails_with lifecycle active_build_timeout "" clean "$key"
weights 0 show "$key"; says "build held" out
weights 0 deny "$key" --reason x
fails_with production active_build_timeout "" import big --identity id.json --wait 1
weights 1 import big --identity id.json --wait 1; says "waiting for it" err; says "holder_pids" err
# two that wait for the same lock: one copies, the other joins it
for n in 1 2; do "$tool" weights import big --identity id.json --quiet >"twin$n" 2>&1 & twins[n]=$!; done
flock -u 9
wait "${twins[1]}" && wait "${twins[2]}" || fail "one of two imports failed: $(cat twin1 twin2)"
[ "$(cat twin1 twin2 | grep -c '^imported')" = 1 ] || fail "not one of two imports copied: $(cat twin1 twin2)"
[ "$(cat twin1 twin2 | grep -cE '^(already there:|another process imported) ')" = 1 ] || fail "$(cat twin1 twin2)"
exec 9<&-
weights 0 clean "$key"

# --- the default folder of a user, and a home that is not there ---
if [ "$(id -u)" != 0 ]; then
    unset HOSTLANE_WEIGHTS
    env HOME="$PWD/home" XDG_DATA_HOME= "$tool" weights import one --identity id.json --storage-class $class --quiet >out || fail "in a home"
    [ -e home/.local/share/hostlane/weights/domain.json ] || fail "the store is not in the home folder"
    env HOME="$PWD/home" XDG_DATA_HOME="$PWD/data" "$tool" weights import one --identity id.json --storage-class $class --quiet >out || fail "in XDG_DATA_HOME"
    [ -e data/hostlane/weights/domain.json ] || fail "the store is not in XDG_DATA_HOME"
    status=0
    env HOME= XDG_DATA_HOME= "$tool" weights ls >out 2>err || status=$?
    [ $status = 2 ] || fail "without a home"
    says "say --store" err
fi
echo "weights: every command done"
