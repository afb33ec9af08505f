#!/usr/bin/env bash
# Checks grant.pml with Spin. What to check is named by the arguments; without any, everything. Each check prints its
# bounds, states and depth; nothing is sampled: a search that was not exhaustive fails.
#   safety     the assertions, and that nobody waits for ever, of one session
#   sessions   the same of two sessions
#   progress   the properties at the end of the model, under weak fairness
#   variants   each defect on purpose must fail with the assertion that names its invariant
#   names      every C function that the model's header names is defined in the file it names
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
model=$PWD/grant.pml
root=$(dirname "$(readlink -f "$model")")/../..
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/grant-model.XXXXXX")
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

pass() { passed=$((passed + 1)); }
fail() {
    failed=$((failed + 1))
    echo "FAILED $1"
}

# search NAME "SPIN OPTIONS" "GCC OPTIONS" "PAN OPTIONS": leaves what pan says in $work/NAME/log.
search() {
    local folder=$work/$1
    mkdir -p "$folder" && cd "$folder" || return 1
    # shellcheck disable=SC2086 # the options are words
    spin -a $2 "$model" >spin.log 2>&1 && gcc -DMEMLIM=2000 $3 -o pan pan.c >gcc.log 2>&1 || {
        cat spin.log gcc.log
        return 1
    }
    # shellcheck disable=SC2086
    ./pan -m100000 $4 >log 2>&1
    cd "$work" || return 1
}

# What a log says of its search: states, depth, memory.
measure() {
    awk '/states, stored/ { states = $1 } /depth reached/ { depth = $6 } /total actual memory/ { memory = $1 }
         /elapsed time/ { time = $4 } END { sub(",", "", depth)
         printf "%s states, depth %s, %.0f MiB, %s s", states, depth, memory, time }' "$1"
}

is_exhaustive() {
    grep -q 'errors: 0' "$1" && ! grep -qE 'MEMLIM|Search not completed|max search depth too small|truncated' "$1"
}

check() { # name, bounds
    local log=$work/$1/log
    if search "$1" "$2" "-O2 -DSAFETY -DCOLLAPSE" "" && is_exhaustive "$log"; then
        echo "$1: $(measure "$log"); bounds:${2//-D/ }"
        pass
    else
        fail "$1: bounds:${2//-D/ }"
        [ -f "$log" ] && grep -E 'assertion violated|invalid end state|errors:|MEMLIM' "$log"
    fi
}

progress() { # property, bounds
    local log=$work/$1/log
    if search "$1" "-DPROGRESS $2" "-O2 -DCOLLAPSE -DNFAIR=3" "-a -f -N $1" && is_exhaustive "$log"; then
        echo "$1 (progress): $(measure "$log"); bounds:${2//-D/ }"
        pass
    else
        fail "$1 (progress): bounds:${2//-D/ }"
        [ -f "$log" ] && grep -E 'acceptance cycle|assertion violated|errors:|MEMLIM' "$log"
    fi
}

variant() { # defect, what pan must say, bounds
    local log=$work/$1/log said=
    search "$1" "-D$1 $3" "-DSAFETY -DCOLLAPSE" "" && said=$(grep -m1 -E '^pan:1: ' "$log")
    if [[ $said =~ $2 ]]; then
        echo "$1: found, \"${BASH_REMATCH[0]}\" after $(measure "$log")"
        pass
    else
        fail "$1: expected \"$2\", found \"${said:-nothing}\""
    fi
}

# A defect after which something waits for ever must be found as a fair run that never keeps the promise.
progress_variant() { # defect, property
    local log=$work/$1/log
    if search "$1" "-DPROGRESS -DFINISH -DOPERATIONS=1 -D$1" "-DCOLLAPSE -DNFAIR=3" "-a -f -N $2" &&
        grep -q '^pan:1: acceptance cycle' "$log"; then
        echo "$1: found, $2 does not hold, after $(measure "$log")"
        pass
    else
        fail "$1: $2 holds, or it was not checked"
        [ -f "$log" ] && grep -E '^pan:' "$log"
    fi
}

safety() {
    check one_record "-DFINISH -DOPERATIONS=2 -DRECORDS=1 -DPARTS=2"
    check three_operations "-DOPERATIONS=3 -DRECORDS=1 -DPARTS=1"
    check two_records "-DOPERATIONS=2 -DRECORDS=2 -DPARTS=2"
    check two_records_end "-DFINISH -DMORTAL=0 -DOPERATIONS=2 -DRECORDS=2 -DPARTS=2"
}

sessions() {
    check a_place_again "-DSESSIONS=2 -DPLACES=1 -DOPERATIONS=1 -DPARTS=2"
    check a_place_again_end "-DFINISH -DMORTAL=1 -DSESSIONS=2 -DPLACES=1 -DOPERATIONS=1 -DPARTS=1"
    check a_place_twice "-DMORTAL=1 -DSESSIONS=2 -DPLACES=1 -DOPERATIONS=2 -DPARTS=1"
    check two_sessions "-DFINISH -DMORTAL=1 -DSESSIONS=2 -DPLACES=2 -DOPERATIONS=1 -DPARTS=1"
}

all_progress() {
    for property in drained released answered; do
        progress $property "-DFINISH -DOPERATIONS=2 -DRECORDS=1 -DPARTS=1"
    done
    progress_variant BUG_DEVICE_STALLS drained
    progress_variant BUG_DEATH_FORGOTTEN released
    progress_variant BUG_NO_MAINTENANCE answered
}

variants() {
    local one="-DOPERATIONS=1" two="-DOPERATIONS=2 -DRECORDS=2"
    variant BUG_TIMEOUT_RELEASE I7_quarantine_is_kept "$one"
    variant BUG_DEATH_IS_FENCE I7_quarantine_is_kept "$one"
    variant BUG_OWNER_AFTER_GRANT I5_owner_exists "$one"
    variant BUG_REAP_BEFORE_RELEASE I5_owner_exists "$one"
    variant BUG_TAKE_BACK_BLIND honest_record_is_explained "$one"
    variant BUG_RELEASE_ON_PART I1_source_is_not_reused "$one"
    variant BUG_BLIND_REVOKE I1_source_is_not_reused "$one"
    variant BUG_NO_GENERATION I4_stale_changes_nothing "-DOPERATIONS=2"
    variant BUG_NO_SERIAL I4_stale_changes_nothing "-DSESSIONS=2 -DPLACES=1 -DOPERATIONS=1 -DPARTS=1"
    variant BUG_DRAINED_EARLY I9_drained_is_true "$one"
    variant BUG_PAGES_EARLY I3_page_is_kept "$one"
    variant BUG_SURRENDER I8_manager_death_is_no_result "$one"
    variant BUG_CREDIT_KEPT I2_credits_are_conserved "$one"
    variant BUG_BANK_EARLY bank_is_not_overwritten "$two"
    variant BUG_NO_MAINTENANCE "invalid end state" "-DFINISH $one"
}

names() {
    local file="" word missing=0 count=0
    while read -r word; do
        case "$word" in
        *.c:) file=${word%:} ;;
        *"()")
            count=$((count + 1))
            if ! grep -qE "^[a-z][^;]*\b${word%()}\(" "$root/$file" 2>/dev/null; then
                echo "$file does not define $word"
                missing=$((missing + 1))
            fi
            ;;
        esac
    done < <(sed -n '1,/\*\//p' "$model" | grep -oE '[a-z_/]+\.c:|[a-z_]+\(\)')
    echo "names: $count functions are named in the header, $missing are not in the sources"
    if [ $count -gt 40 ] && [ $missing -eq 0 ]; then pass; else fail names; fi
}

[ $# -gt 0 ] || set -- names safety sessions progress variants
for what in "$@"; do
    case "$what" in
    safety | sessions | variants | names) "$what" ;;
    progress) all_progress ;;
    *)
        echo "usage: $0 [safety|sessions|progress|variants|names]..." >&2
        exit 2
        ;;
    esac
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
