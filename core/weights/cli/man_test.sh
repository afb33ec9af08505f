#!/bin/bash
# The manual pages and docs/weights.md agree with the tool and the header (man_check.py), every kind of drift is seen, and
# groff and man have nothing to say against the pages.
# Usage: man_test.sh TOOL PAGE1 PAGE7 HEADER JSON_MEMBERS WEIGHTS_MD MAN_CHECK
set -eu
tool=$1 page1=$2 page7=$3 header=$4 members=$5 weights=$6 check=$7
[ -x "$tool" ] || tool=$PWD/$tool
fail() { echo "$1"; exit 1; }
export PYTHONDONTWRITEBYTECODE=1
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/manXXXXXX")
"$tool" weights --help >"$work/help"
cp "$page1" "$work/page1"; cp "$page7" "$work/page7"; cp "$header" "$work/header"
cp "$members" "$work/members"; cp "$weights" "$work/weights"
chmod -R u+w "$work"
checked() { python3 -I -S "$check" "$work/help" "$work/page1" "$work/page7" "$work/header" "$work/members" "$work/weights"; }
checked || fail "the pages do not agree with the program"

# drift FILE SED SAYS: a change of one side alone is found, and named.
drift() {
    local said
    cp "$work/$1" "$work/kept"
    sed -i "$2" "$work/$1"
    if cmp -s "$work/$1" "$work/kept"; then fail "$2 changes nothing in $1: the test is out of date"; fi
    if said=$(checked); then fail "$2 in $1 is not noticed"; fi
    grep -qF -- "$3" <<<"$said" || fail "$2 in $1: it says $said"
    mv "$work/kept" "$work/$1"
}
drift help 's/--quiet/--silent/' "--silent"
drift page1 's/aligned/packed/' "packed"
drift help 's/^  where /  locate /' "locate"
drift help 's/2 wrong usage/2 wrong usage, 3 other/' "exit statuses"
drift page1 's/^\.B 128+n/.B 3/' "EXIT STATUS"
drift header 's/"local_miss"/"miss"/' "local_miss"
drift page7 's/^\.B enospc/.B nospace/' "nospace"
drift header 's/"free space on the file system")/"free bytes")/' "free bytes"
drift weights 's/^| `active_lease` .*//' "active_lease"
drift header 's/"lifecycle")/"life")/' "life"
drift members 's/^clean ok removed/clean ok gone/' "gone"
drift page7 's/hl_weight_store_clean_quarantined/hl_weight_store_sweep/' "hl_weight_store_sweep"

for page in "$page1" "$page7"; do
    said=$(groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null) || fail "groff (Debian: groff-base) failed: $said"
    [ -z "$said" ] || fail "groff: $page: $said"
    said=$(LC_ALL=C.UTF-8 man --warnings -l "$page" 2>&1 >/dev/null) || fail "man (Debian: man-db) failed: $said"
    [ -z "$said" ] || fail "man: $page: $said"
done
echo "the pages agree with the program"
