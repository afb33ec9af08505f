#!/usr/bin/env bash
# Formatting (clang-format), static analysis (clang-tidy with the list in .clang-tidy) and a few rules of the house.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0

complain() {
    echo "lint: $1"
    failed=1
}

mapfile -t sources < <(git ls-files '*.c' '*.h' '*.cu')
# The canaries are defects on purpose.
mapfile -t units < <(git ls-files '*.c' ':!qualification/canaries')
clang-format --dry-run --Werror "${sources[@]}" || complain "run clang-format -i on the files above"

cuda_include=$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")/../include
# Only what it finds is shown, not how much it suppressed. A process takes one file: of several, clang-tidy 14 analyses
# the second and later with names that it kept from the first, and takes every va_list for an uninitialised one.
tidy() {
    local faults=()
    # What drives faults exists in that form only; of everything else the production form is looked at.
    if [[ $1 == faults/* ]] || grep -qE '"faults/(board|testing|sweep/)' "$1"; then faults=(-DHL_FAULTS=1); fi
    clang-tidy --quiet --warnings-as-errors='*' "$1" -- -std=gnu17 -D_GNU_SOURCE "${faults[@]}" -I. -Icore/include \
        -Iengine/include -Imanager/include \
        -I"$cuda_include" -Wall -Wextra 2>/dev/null
}
export -f tidy
export cuda_include
if [ ! -e "$cuda_include/cuda.h" ]; then
    mapfile -t units < <(grep -LE '"core/device/cuda_(driver|device)\.h"|<cuda\.h>' "${units[@]}")
    echo "lint: no CUDA headers in $cuda_include: clang-tidy leaves the CUDA back end out"
fi
printf '%s\0' "${units[@]}" | xargs -0 -P "$(nproc)" -n 1 bash -c 'tidy "$0"' || complain "clang-tidy found the above"
for canary in qualification/canaries/{address,leak}_canary.c; do
    [[ $(tidy "$canary") == *clang-analyzer-unix.Malloc* ]] || complain "clang-tidy no longer finds the defect of $canary"
done

for file in "${sources[@]}"; do
    lines=$(wc -l <"$file")
    [ "$lines" -le 600 ] || complain "$file has $lines lines: two concerns in one file?"
done
git ls-files | grep -E '(^|/)(util|utils|helper|helpers|common|misc)\.[a-z]+$' && complain "a file's name must say what is in it"
git ls-files -z '*.sh' run .ci/run | xargs -0 -n 1 bash -n || complain "a script does not parse"
git ls-files -z '*.py' | xargs -0 -r python3 -m py_compile || complain "a Python file does not compile"
[ $failed -eq 0 ] && echo "lint: ${#sources[@]} C files clean"
exit $failed
