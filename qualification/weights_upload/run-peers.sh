#!/usr/bin/env bash
# Installs the loaders whose wheels lie in a folder, without a network, and times them beside each other.
# Usage: run-peers.sh WHEELS JSON FILE.safetensors …
# torch is the machine's own. Wheels: safetensors, fastsafetensors, runai-model-streamer with humanize, instanttensor.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 3 ] || {
    echo "usage: run-peers.sh WHEELS JSON FILE.safetensors ..." >&2
    exit 2
}
wheels=$1 json=$2
shift 2
unset LD_LIBRARY_PATH # a bundle's libraries are not for another Python's extensions
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
python3 -m pip install --quiet --no-index --no-deps --find-links "$wheels" --target "$packages" "$wheels"/*.whl
PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH} python3 "$here/peers.py" --runs "${HOSTLANE_PEERS_RUNS:-5}" --json "$json" "$@"
