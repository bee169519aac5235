#!/usr/bin/env bash
# Build the package and use it as a stranger would: an empty environment, away from the source tree.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
bin=$(cd "${BIN:-.venv/bin}" && pwd)
rm -rf dist
"$bin/python" -m build
"$bin/twine" check --strict dist/*
wheel=$(ls "$PWD"/dist/*.whl)
contents=$("$bin/python" -m zipfile -l "$wheel")
for file in rarely/py.typed rarely/demo/assets/signs.onnx rarely/report/templates/page.html rarely/report/assets/page.css; do
  grep -q "^$file " <<<"$contents" || { echo "the wheel lacks $file" >&2; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check -c constraints.txt "$wheel"
cd "$work"
venv/bin/pip check
venv/bin/python -m rarely --version
venv/bin/rarely demo --out demo
venv/bin/python -m rarely doctor
echo "release check passed: $wheel"
