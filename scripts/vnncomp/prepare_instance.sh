#!/bin/bash
# VNN-COMP: prepare one instance. Called as: prepare_instance.sh v1 CATEGORY NETWORK.onnx PROPERTY.vnnlib
# A nonzero exit skips the instance, so it is used for files that rarely cannot read.
set -uo pipefail
if [ "${1:-}" != v1 ] || [ $# -lt 4 ]; then
    echo "prepare_instance.sh: expected v1 CATEGORY NETWORK PROPERTY" >&2
    exit 1
fi
rarely=$(dirname "${BASH_SOURCE[0]}")/../../.venv/bin/rarely
# A run before this one that was stopped by its time limit may have left its process behind.
if [ -f "${TMPDIR:-/tmp}/rarely-vnncomp.pid" ]; then
    kill "$(cat "${TMPDIR:-/tmp}/rarely-vnncomp.pid")" 2>/dev/null
    rm -f "${TMPDIR:-/tmp}/rarely-vnncomp.pid"
fi
"$rarely" inspect --quiet "$3" && "$rarely" inspect --quiet "$4"
