#!/bin/bash
# VNN-COMP: install the tool. Called once as: install_tool.sh v1
set -euo pipefail
if [ "${1:-}" != v1 ]; then
    echo "install_tool.sh: expected version string v1, got '${1:-}'" >&2
    exit 1
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PYTHON=${PYTHON:-python3}
test -x .venv/bin/python || "$PYTHON" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[onnxruntime]'
.venv/bin/rarely --version
