#!/usr/bin/env bash
# Builds each canary under its sanitizer, runs it, and requires that it fails with that sanitizer's report.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
passed=0 failed=0

canary() { # name, config, what the report must say
    local name=$1 config=$2 report=$3 binary output rc
    if ! bazel build --config="$config" "//qualification/canaries:$name" >/dev/null 2>&1; then
        echo "FAILED $name: it does not build under --config=$config"
        failed=$((failed + 1))
        return
    fi
    binary=$(bazel info --config="$config" bazel-bin 2>/dev/null)/qualification/canaries/$name
    output=$("$binary" 2>&1)
    rc=$?
    if [ $rc -ne 0 ] && grep -q "$report" <<<"$output"; then
        passed=$((passed + 1))
    else
        echo "FAILED $name under --config=$config: exit status $rc, no \"$report\" in its output"
        failed=$((failed + 1))
    fi
}

canary address_canary asan "AddressSanitizer: heap-use-after-free"
canary leak_canary asan "LeakSanitizer: detected memory leaks"
canary undefined_canary asan "signed integer overflow"
canary thread_canary tsan "ThreadSanitizer: data race"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
