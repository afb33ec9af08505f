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
mapfile -t units < <(git ls-files '*.c')
clang-format --dry-run --Werror "${sources[@]}" || complain "run clang-format -i on the files above"

cuda_include=$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")/../include
printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 8 sh -c 'clang-tidy --quiet --warnings-as-errors="*" "$@" -- \
    -std=gnu17 -D_GNU_SOURCE -I. -Icore/include -I'"$cuda_include"' -Wall -Wextra 2>/dev/null' tidy ||
    complain "clang-tidy found the above"

for file in "${sources[@]}"; do
    lines=$(wc -l <"$file")
    [ "$lines" -le 600 ] || complain "$file has $lines lines: two concerns in one file?"
done
git ls-files | grep -E '(^|/)(util|utils|helper|helpers|common|misc)\.[a-z]+$' && complain "a file's name must say what is in it"
git ls-files -z '*.sh' run .ci/run | xargs -0 -n 1 bash -n || complain "a script does not parse"
git ls-files -z '*.py' | xargs -0 -r python3 -m py_compile || complain "a Python file does not compile"
[ $failed -eq 0 ] && echo "lint: ${#sources[@]} C files clean"
exit $failed
