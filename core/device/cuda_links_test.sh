#!/bin/sh
# A binary with the CUDA back end starts on a machine without a driver: nothing in it asks the loader for one.
# Usage: cuda_links_test.sh BINARY…
set -eu
[ $# -gt 0 ]
for binary in "$@"; do
    needed=$(readelf -d "$binary" | grep NEEDED)
    echo "$needed" | grep -q 'libc\.so' || { echo "$binary: readelf shows no libc, so this test proves nothing"; exit 1; }
    if echo "$needed" | grep -E 'libcuda|libcudart|libnv'; then
        echo "$binary asks for the libraries above"
        exit 1
    fi
done
