#!/bin/sh
# The C library beside the Python package of safetensors.
# Usage: package_test.sh SAFETENSORS_TOOL PACKAGE_TEST_PY PINS, where PINS lies beside the folder of the packages
set -eu
PYTHONPATH=$(dirname "$3")/packages
export PYTHONPATH
exec /usr/bin/python3 -B "$2" "$1"
