#!/usr/bin/env bash
# Builds the shipped binaries a second time, from a copy of the sources in another folder and in a fresh output base, and
# compares every byte with the first build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

targets=(
    //engine/demo:hostlane-demo
    //engine:libhostlane-engine.so
    //manager:hostlane-manager
    //manager:hostlane
)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/hostlane-reproducible.XXXXXX")
second="bazel --output_base=$scratch/output"
cleanup() {
    (cd "$scratch/source" 2>/dev/null && $second shutdown >/dev/null 2>&1) || true
    chmod -R u+w "$scratch" && rm -rf "$scratch"
}
trap cleanup EXIT

bazel build "${targets[@]}" >/dev/null 2>&1 || { echo "reproducible: the first build failed"; exit 1; }
first_bin=$(bazel info bazel-bin 2>/dev/null)
mkdir -p "$scratch/source"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$scratch/source"
cd "$scratch/source"
if ! $second build --symlink_prefix=/ "${targets[@]}" >"$scratch/log" 2>&1; then
    tail -n 20 "$scratch/log"
    echo "reproducible: the second build failed"
    exit 1
fi
second_bin=$($second info bazel-bin 2>/dev/null)
differ=0
for target in "${targets[@]}"; do
    path=${target#//}
    path=${path/://}
    if ! cmp "$first_bin/$path" "$second_bin/$path"; then differ=1; fi
done
[ $differ -eq 0 ] && echo "reproducible: ${#targets[@]} binaries equal, byte for byte, from two folders and output bases"
exit $differ
