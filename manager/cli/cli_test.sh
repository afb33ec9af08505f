#!/bin/bash
# The daemon and the tool together: each verb, refusals that say what to do, signals, a stale socket.
# Usage: cli_test.sh MANAGER TOOL
set -eu
manager=$PWD/$1
tool=$PWD/$2
[ -x "$manager" ] || manager=$1
[ -x "$tool" ] || tool=$2
cd "$(mktemp -d "${TEST_TMPDIR:-/tmp}/cXXXXXX")"
pid=
trap '[ -z "$pid" ] || kill -KILL "$pid"' EXIT

fail() { echo "$1"; cat log out err 2>/dev/null; exit 1; }

# Runs the tool, expects its exit status, keeps its output in out and err.
hostlane() {
    local expected=$1 status=0
    shift
    "$tool" "$@" >out 2>err || status=$?
    [ "$status" = "$expected" ] || fail "hostlane $* ended with $status, not $expected"
}
says() { grep -q -- "$1" "$2" || fail "\"$1\" is not in $2"; }
is_json() { python3 -c 'import json, sys; json.load(open("out"))' || fail "no JSON"; }

# Starts the daemon and waits for its "ready", which comes through a pipe: nothing is polled.
start() {
    mkfifo pipe
    "$manager" --socket m/s --software --arena-bytes 2M --arena-count 2 --index-blocks 1000 "$@" 2>pipe &
    pid=$!
    exec 3<pipe
    rm pipe
    : >log
    while read -r -t 60 line <&3; do
        echo "$line" >>log
        case $line in *ready*) return ;; esac
    done
    fail "the Manager is not ready"
}
# Ends it with a signal; its exit status is 0 and its socket is gone.
stop() {
    local status=0
    kill "-$1" "$pid"
    wait "$pid" || status=$?
    pid=
    cat <&3 >>log
    exec 3<&-
    [ "$status" = 0 ] || fail "SIG$1 ended the Manager with $status"
    [ ! -e m/s ] || fail "the socket is still there"
    says stopped log
}

hostlane 1 --socket m/s status
says "start hostlane-manager" err
hostlane 2
hostlane 2 dance
says 'no command "dance"' err
hostlane 2 status now
hostlane 2 --colour status
hostlane 2 status --socket
hostlane 0 --help
says "quarantine release" out

start
says "register: 100%" log
for verb in status sessions arenas "quarantine list" check; do
    # shellcheck disable=SC2086
    hostlane 0 --socket m/s $verb
    # shellcheck disable=SC2086
    hostlane 0 --socket m/s --json $verb
    is_json
done
hostlane 0 --socket m/s status
says "software device" out
says "arenas           4.0 MiB" out
hostlane 0 --socket m/s quarantine list
says "nothing is in quarantine" out
hostlane 0 --socket m/s check
says "every credit has its owner" out

release="quarantine release 0x1 1 1 0011223344556677"
# shellcheck disable=SC2086
{
    hostlane 2 --socket m/s $release --operator me
    says "yes-release-while-dma-may-run" err
    hostlane 2 --socket m/s $release --yes-release-while-dma-may-run
    says "operator NAME" err
    hostlane 2 --socket m/s quarantine release 1 1024 1 0011223344556677 --yes-release-while-dma-may-run --operator me
    says RECORD err
    hostlane 2 --socket m/s quarantine release x 1 1 0011223344556677 --yes-release-while-dma-may-run --operator me
    says EPOCH err
    hostlane 2 --socket m/s quarantine release 1 1 x 0011223344556677 --yes-release-while-dma-may-run --operator me
    says GENERATION err
    hostlane 2 --socket m/s quarantine release 1 1 1 short --yes-release-while-dma-may-run --operator me
    says TOKEN8 err
    hostlane 2 --socket m/s quarantine release 1 1 1
    hostlane 1 --socket m/s $release --yes-release-while-dma-may-run --operator me
    says "quarantine list" err
}

status=0
"$manager" --socket m/s --software --arena-bytes 2M 2>err || status=$?
[ "$status" = 1 ] || fail "a second Manager ended with $status"
says "a Manager is listening" err
hostlane 0 --socket m/s check
stop TERM

# A Manager that was killed leaves its socket: the next one takes the place.
start
kill -KILL "$pid"
wait "$pid" || true
pid=
exec 3<&-
[ -e m/s ] || fail "a killed Manager removed its socket"
start
hostlane 0 --socket m/s check
stop INT

status=0
"$manager" --arena-bytes lots 2>err || status=$?
[ "$status" = 2 ] || fail "a wrong flag ended with $status"
says "arena-bytes" err
"$manager" --arena-count 5 --print-options >out || fail "--print-options"
says "arena-count = 5" out
"$manager" --config out --print-options >again || fail "a printed file is not read"
cmp out again || fail "a printed file reads differently"
"$manager" --help >out || fail "--help"
says "--lease-ttl-ms" out
