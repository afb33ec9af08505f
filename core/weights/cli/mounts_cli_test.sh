#!/bin/bash
# `hostlane weights` on file systems that are full, read-only or of no known kind, in a mount namespace of its own.
# Usage: mounts_cli_test.sh TOOL MAKE_FOLDER
set -eu
absolute() { if [ -e "$PWD/$1" ]; then echo "$PWD/$1"; else echo "$1"; fi; }
if [ -z "${IN_NAMESPACE:-}" ]; then
    base=$(mktemp -d "${TEST_TMPDIR:-/tmp}/mXXXXXX")
    tool=$(absolute "$1") make_folder=$(absolute "$2")
    export IN_NAMESPACE=1
    # Without such a namespace the test fails: it can't establish what it tests.
    if [ "$(id -u)" = 0 ]; then namespaces=(--mount); else namespaces=(--user --map-root-user --mount); fi
    exec unshare "${namespaces[@]}" bash "$(absolute "$0")" "$tool" "$make_folder" "$base"
fi
tool=$1 make_folder=$2
cd "$3"
fail() { echo "$1"; cat out err; exit 1; }
weights() {
    local expected=$1 status=0
    shift
    "$tool" weights "$@" >out 2>err || status=$?
    [ "$status" = "$expected" ] || fail "hostlane weights $* ended with $status, not $expected"
}
says() { grep -q -- "$1" "$2" || fail "\"$1\" is not in $2"; }

mkdir point
mount -t tmpfs -o size=1M,mode=0755 none point
export HOSTLANE_WEIGHTS=$PWD/point/store
python3 -I -S "$make_folder" small one
python3 -I -S "$make_folder" large big 4000000
"$tool" weights identity --example | sed 's/REPLACE-ME/mine/' >id.json
sed 's/mine-org/other-org/' id.json >other.json

# the default storage class is disk; the failure says what to give instead
weights 1 import small --identity id.json; says "domain: storage_class_mismatch: " err; says "give --storage-class" err
# full: refused before a byte is copied, and nothing stays
weights 1 import large --identity id.json --storage-class tmpfs
says "capacity: insufficient_capacity: " err; says "what to do: free space on the file system" err
[ -z "$(ls -A point/store/tmp point/store/artifacts | grep -v :)" ] || fail "something is left of a refused import"
weights 0 import small --identity id.json --quiet
key=$(sed -n 's/^imported //p' out)
weights 0 where; says "every byte of the store is memory" out

# read-only: looking works, changing says why not
mount -o remount,ro point
for command in ls where "verify --all" "show $key --tensors" "show $key --json"; do weights 0 $command; done
for command in "import small --identity other.json" "deny $key --reason x" "clean $key"; do
    weights 1 $command
    says "domain: domain_unavailable: .*Read-only file system" err
    says "what to do: ls, show, verify and where work on a read-only file system" err
done
mount -o remount,rw point
weights 0 clean "$key"

# no local disk and no tmpfs
weights 1 import small --identity id.json --store /proc/store --storage-class disk
says "unsupported: " err
echo "weights: full, read-only and unknown file systems"
