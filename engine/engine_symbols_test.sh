#!/bin/sh
# The shared library exports what its symbol map names and nothing else, and the map names every function that
# the public headers mark with HL_API.
# Usage: engine_symbols_test.sh LIBRARY MAP HEADER…
set -eu
library=$1 map=$2
shift 2
mapped=$(sed -n '/global:/,/local:/s/^ *\(hl_[a-z0-9_]*\);$/\1/p' "$map" | sort)
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u)
declared=$(cat "$@" | tr '\n' ' ' | grep -o 'HL_API [^;]*(' | grep -o 'hl_[a-z0-9_]*(' | tr -d '(' | sort -u)
[ "$(echo "$mapped" | wc -l)" -gt 10 ] || { echo "the map was not read: this test proves nothing"; exit 1; }
if [ "$exported" != "$mapped" ]; then
    echo "exported, and not as mapped:"
    printf '%s\n' "$exported" "$mapped" | sort | uniq -u
    exit 1
fi
if [ "$declared" != "$mapped" ]; then
    echo "declared, and not as mapped:"
    printf '%s\n' "$declared" "$mapped" | sort | uniq -u
    exit 1
fi
if nm -D "$library" | grep -E ' U (_Z|hl_)'; then
    echo "the library needs the symbols above from elsewhere"
    exit 1
fi
