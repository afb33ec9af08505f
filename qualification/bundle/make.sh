#!/usr/bin/env bash
# Collects what a GPU machine without Bazel needs into one folder: binaries, the tests of restore requirements, the
# libraries they need beyond glibc, model configs, scripts and the runner. Usage: make.sh DIR
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bundle=$(realpath -m "${1:?usage: make.sh DIR}")

programs=(
    //engine/demo:hostlane-demo
    //manager:hostlane-manager
    //manager:hostlane
    //qualification/bench:restore_latency
    //core/device:device_conformance_test
    //core/device:gather_bench
    //core/transfer:transfer_test
    //core/transfer:transfer_property_test
    //core/weights/upload:upload_test
    //qualification/weights_upload:upload_bench
    //qualification/inflight:inflight_test
    //qualification/inflight:late_writes
)
all_tests='(//qualification/restore:all + //qualification/scenarios:all)'
mapfile -t requirements < <(bazel query "kind('cc_test rule', $all_tests) except attr(tags, '\\bfaults\\b', $all_tests)")
[ ${#requirements[@]} -gt 0 ] || {
    echo "make.sh: no tests in $all_tests" >&2
    exit 1
}
bazel build "${programs[@]}" "${requirements[@]}"
rm -rf "$bundle"
mkdir -p "$bundle/bin" "$bundle/requirements" "$bundle/lib" "$bundle/configs"
collect() { # folder, target …
    local folder=$1 program path
    shift
    for program in "$@"; do
        path=${program#//}
        install -m 0755 "bazel-bin/${path/://}" "$bundle/$folder/"
    done
}
collect bin "${programs[@]}"
collect requirements "${requirements[@]}"
ldd "$bundle"/bin/* "$bundle"/requirements/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' | while read -r library; do
    install -m 0644 "$library" "$bundle/lib/"
done
install -m 0644 engine/demo/configs/*.json "$bundle/configs/"
install -m 0755 engine/demo/timeline.py "$bundle/"
install -m 0755 qualification/weights_upload/run-peers.sh "$bundle/"
install -m 0644 qualification/weights_upload/peers.py "$bundle/"
install -m 0755 qualification/bundle/run-on-gpu.sh "$bundle/"
install -m 0644 qualification/bundle/collect.py "$bundle/"
git rev-parse HEAD >"$bundle/commit"
[ -z "$(git status --porcelain)" ] || echo "with uncommitted changes" >>"$bundle/commit"
(cd "$bundle" && sha256sum bin/* requirements/* lib/* >digests)
echo "bundle: $bundle ($(du -sh "$bundle" | cut -f1))"
