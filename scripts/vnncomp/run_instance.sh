#!/bin/bash
# VNN-COMP: run one instance.
# Called as: run_instance.sh v1 CATEGORY NETWORK.onnx PROPERTY.vnnlib RESULT_FILE TIMEOUT_SECONDS
set -uo pipefail
if [ "${1:-}" != v1 ] || [ $# -lt 6 ]; then
    echo "run_instance.sh: expected v1 CATEGORY NETWORK PROPERTY RESULT_FILE TIMEOUT" >&2
    exit 1
fi
rarely=$(dirname "${BASH_SOURCE[0]}")/../../.venv/bin/rarely
"$rarely" verify "$3" "$4" --timeout "$6" --result "$5" &
echo $! >"${TMPDIR:-/tmp}/rarely-vnncomp.pid"
wait $!
code=$?
rm -f "${TMPDIR:-/tmp}/rarely-vnncomp.pid"
[ -s "$5" ] || echo error >"$5"
exit $code
