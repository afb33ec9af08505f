#!/bin/bash
# The manual pages name every flag and command of the tool and every failure code of the header, and groff has
# nothing to say against them. Usage: man_test.sh TOOL PAGE1 PAGE7 HEADER
set -eu
tool=$1 commands=$2 store=$3 header=$4
[ -x "$tool" ] || tool=$PWD/$tool
fail() { echo "$1"; exit 1; }

"$tool" weights --help >"$TEST_TMPDIR/help"
plain=$(sed 's/\\-/-/g' "$commands")
for word in $(grep -oE -- '--[a-z-]+' "$TEST_TMPDIR/help" | sort -u) import ls show verify deny clean where identity; do
    case $word in --help) continue ;; esac
    grep -qwF -- "$word" <<<"$plain" || fail "$commands does not name $word"
done

codes=$(sed -n '/define HL_WEIGHT_CODE_LIST/,/^$/s/.*X([A-Z_0-9]*, "\([a-z_]*\)".*/\1/p' "$header")
[ "$(wc -w <<<"$codes")" -ge 30 ] || fail "the list of codes is not where it was: $codes"
for code in $codes; do
    grep -qx "\.B $code" "$store" || fail "$store does not explain $code"
done
for code in $(sed -n '/^\.SH FAILURES/,/^\.SH C/s/^\.B //p' "$store"); do
    grep -qw "$code" <<<"$codes" || fail "$store explains $code, which is no code"
done

if command -v groff >/dev/null; then
    for page in "$commands" "$store"; do
        said=$(groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null)
        [ -z "$said" ] || fail "$said"
    done
else
    echo "groff is not installed: the pages' markup is not checked"
fi
echo "$(wc -w <<<"$codes") codes and every flag are explained"
