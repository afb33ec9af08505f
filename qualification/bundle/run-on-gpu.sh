#!/usr/bin/env bash
# Runs the GPU part of the qualification from a bundle, and keeps the raw results.
# Usage: run-on-gpu.sh RESULTS [STEP …]   (default: all steps)
#   conformance  device and executor tests          memcheck  some of them under compute-sanitizer
#   exact, huge  every geometry by every route      bench     the gather kernel
#   restore      Manager and engines as processes   measure   P1 to P4
#   latency      P5 and P6                          upload    host weights to the device, exactly
#   upload-bench P11, on tmpfs and on disk, and other loaders where wheels of them are (HOSTLANE_WHEELS, or wheels/)
#   inflight     processes killed while copies are in flight, and what the device still writes after a death
# Reserves 2 MiB pages for the step `huge` when it may, and gives them back. Ends with "N passed, N failed".
# HOSTLANE_BUNDLE_DEVICE=software rehearses this script without a GPU: what comes out is evidence for nothing.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$(realpath -m "${1:?usage: run-on-gpu.sh RESULTS [STEP …]}")
shift
steps=("$@")
device=${HOSTLANE_BUNDLE_DEVICE:-cuda} pages=96
case "$device" in
cuda) all=(conformance memcheck exact huge restore bench latency measure upload upload-bench inflight) ;;
software) all=(conformance exact restore latency upload upload-bench inflight) pages=2 ;;
*)
    echo "run-on-gpu: HOSTLANE_BUNDLE_DEVICE is $device: software, or unset" >&2
    exit 2
    ;;
esac
[ ${#steps[@]} -gt 0 ] || steps=("${all[@]}")
mkdir -p "$results"
rm -f "$results/REHEARSAL"
if [ "$device" = software ]; then
    echo "REHEARSAL on the software device: not a qualification, and no figure means anything" | tee "$results/REHEARSAL"
fi
cd "$here" || exit 1 # results name files of the bundle by relative paths
export LD_LIBRARY_PATH="$here/lib"
passed=0 failed=0

# Runs one case, keeps its output, and says how it went.
run_case() { # name, command …
    local name=$1 start=$SECONDS
    shift
    local rc=0
    "$@" >"$results/$name.log" 2>&1 || rc=$?
    if [ $rc -eq 0 ]; then
        passed=$((passed + 1))
        echo "passed $name ($((SECONDS - start)) s)"
    else
        failed=$((failed + 1))
        echo "FAILED $name (exit status $rc); the end of its output:"
        tail -n 15 "$results/$name.log"
    fi
}

demo() { # name, options …
    local name=$1
    shift
    run_case "$name" bin/hostlane-demo --in-process --device "$device" --json-out "$results/$name.json" \
        --trace-out "$results/$name.trace.json" "$@"
}

conformance() {
    export HOSTLANE_TEST_DEVICE=$device
    run_case device-conformance bin/device_conformance_test
    run_case transfer bin/transfer_test
    run_case transfer-property bin/transfer_property_test
    unset HOSTLANE_TEST_DEVICE
}

# The suite makes driver calls fail on purpose: their error codes are its subject, not memcheck's. The demo's parts are
# small, so that a consumer is queued before the last copy has been submitted, however slow the checker makes it.
memcheck() {
    run_case memcheck-conformance env HOSTLANE_TEST_DEVICE=cuda compute-sanitizer --tool memcheck \
        --report-api-errors no --error-exitcode 9 bin/device_conformance_test
    for route in direct kernel; do
        run_case "memcheck-demo-$route" compute-sanitizer --tool memcheck --error-exitcode 9 bin/hostlane-demo \
            --in-process --device cuda --model-config configs/qwen3-8b.json --pages 64 --part-bytes 4096 --route "$route"
    done
    upload_case memcheck-upload compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9
}

# Every byte compared: each shipped geometry by each route.
exact() { # page-size option or nothing, name suffix
    local config route name
    for config in configs/*.json; do
        name=$(basename "$config" .json)
        for route in direct kernel auto; do
            demo "exact-$name-$route${2:-}" --model-config "$config" --pages "$pages" --route "$route" ${1:+"$1"}
        done
    done
}

huge() {
    local before
    before=$(cat /proc/sys/vm/nr_hugepages)
    echo 1024 >/proc/sys/vm/nr_hugepages 2>/dev/null || true
    exact --huge -huge
    echo "$before" >/proc/sys/vm/nr_hugepages 2>/dev/null || true
}

# A Manager and two engines in processes of their own: every shipped geometry, killed and restored and compared; then the
# requirements' tests.
restore() {
    local config name test
    for config in configs/*.json; do
        name=$(basename "$config" .json)
        run_case "restore-$name" bin/hostlane-demo --device "$device" --model-config "$config" --pages "$pages" \
            --json-out "$results/restore-$name.json"
    done
    mkdir -p "$results/tmp"
    for test in requirements/*; do
        run_case "$(basename "$test" | tr _ -)" env HOSTLANE_TEST_DEVICE="$device" TEST_TMPDIR="$results/tmp" "$test"
    done
    rm -rf "$results/tmp"
}

# P5 and P6: as the executor chooses, by the kernel alone, and with an event a layer. Each compares every byte.
latency() {
    local few=()
    [ "$device" = cuda ] || few=(--samples 8 --warmup 2)
    run_latency restore-latency "${few[@]}"
    run_latency restore-latency-kernel --route kernel "${few[@]}"
    run_latency restore-latency-events --layer-events "${few[@]}"
}

run_latency() { # name, options …
    local name=$1
    shift
    run_case "$name" bin/restore_latency --device "$device" --json "$results/$name.json" "$@"
}

# Exact bytes by both routes, the order of events, files cut short; on a device and its own streams.
upload_case() { # name, what to run the test under …
    local name=$1
    shift
    mkdir -p "$results/tmp"
    run_case "$name" env HOSTLANE_TEST_DEVICE="$device" TEST_TMPDIR="$results/tmp" "$@" bin/upload_test
    rm -rf "$results/tmp"
}

upload() {
    upload_case upload
}

# The store is made in memory and then on a disk, whose bytes stay in the page cache.
upload-bench() {
    local folder wheels=${HOSTLANE_WHEELS:-$here/wheels} gib=8 disk_gib=4 few=()
    [ "$device" = cuda ] || gib=0.25 disk_gib=0.25 few=(--samples 2)
    for place in /dev/shm /tmp; do
        folder=$(mktemp -d "$place/hostlane-upload.XXXXXX")
        if [ $place = /dev/shm ]; then
            upload_bench upload-bench-tmpfs "$folder" --gib $gib --sweep "${few[@]}"
            if [ "$device" = cuda ] && [ -d "$wheels" ]; then
                run_case upload-peers env HOSTLANE_PEERS_RUNS=3 ./run-peers.sh "$wheels" "$results/upload-peers.json" \
                    "$folder"/store/artifacts/*/*.safetensors
            fi
        else
            upload_bench upload-bench-disk "$folder" --gib $disk_gib --verify "${few[@]}"
        fi
        chmod -R u+w "$folder"
        rm -rf "$folder"
    done
}

upload_bench() { # name, folder, options …
    local name=$1 folder=$2
    shift 2
    run_case "$name" bin/upload_bench --device "$device" --dir "$folder" --keep --json "$results/$name.json" "$@"
}

bench() {
    run_case gather-bench bin/gather_bench --json "$results/gather-bench.json"
}

# The figures of performance.md's P1 to P4, from the demo itself.
measure() {
    local qwen=configs/qwen3-8b.json common=(--warmup 3 --runs 21)
    demo measure-p1-kernel-4sm --model-config "$qwen" --pages 455 --route kernel --sms 4 "${common[@]}"
    demo measure-p1-kernel-4sm-small-parts --model-config "$qwen" --pages 455 --route kernel --sms 4 --part-bytes 16384 "${common[@]}"
    demo measure-p1-kernel-4sm-one-part --model-config "$qwen" --pages 455 --route kernel --sms 4 --part-bytes 1048576 --first-part-bytes 1048576 "${common[@]}"
    demo measure-p1-auto --model-config "$qwen" --pages 455 --route auto --sms 4 "${common[@]}"
    demo measure-p1-direct --model-config "$qwen" --pages 455 --route direct "${common[@]}"
    demo measure-p2-direct --model-config "$qwen" --pages 455 --route direct --pitch constant "${common[@]}"
    demo measure-p3-4k-8sm --model-config "$qwen" --pages 3640 --page-tokens 2 --route kernel --sms 8 "${common[@]}"
    demo measure-p3-2k-16sm --model-config "$qwen" --pages 7280 --page-tokens 1 --route kernel --sms 16 "${common[@]}"
}

# F3 and F4 with copies proven to be in flight, by both routes; then the measurement of late writes, which passes
# whatever it finds: its verdict is in its log and its JSON.
inflight() {
    local what way
    mkdir -p "$results/tmp"
    for what in a_manager_killed_while_copy_engines_read_leaves_an_exact_restore \
        a_manager_killed_while_a_kernel_reads_leaves_an_exact_restore \
        an_engine_killed_while_copy_engines_read_is_quarantined an_engine_killed_while_a_kernel_reads_is_quarantined; do
        inflight_case inflight_test "$what"
    done
    for way in copy_engines the_kernel; do
        inflight_case late_writes "writes_of_${way}_after_the_reap_are_measured"
    done
    rm -rf "$results/tmp"
}

inflight_case() { # program, case
    local name=inflight-${2//_/-}
    run_case "$name" env HOSTLANE_TEST_DEVICE="$device" TEST_TMPDIR="$results/tmp" \
        HOSTLANE_INFLIGHT_JSON="$results/$name.json" "bin/$1" "$2"
    [ "$1" != late_writes ] || grep -h 'processes killed' "$results/$name.log"
}

for step in "${steps[@]}"; do
    case " ${all[*]} " in
    *" $step "*) "$step" ;;
    *)
        echo "run-on-gpu: no step named $step on $device" >&2
        exit 2
        ;;
    esac
done
python3 "$here/collect.py" "$here" "$results" >"$results/machine.json" || failed=$((failed + 1))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
