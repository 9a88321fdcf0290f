#!/bin/sh
# bfcl-eval in an environment of its own, .cache/bfcl, with only what its checker and its decoders import: the rest
# of its dependencies (the clients of every provider of models) plays no part in a verdict.
# PYTHON names the interpreter.
set -eu
cd "$(dirname "$0")/../.."
environment=.cache/bfcl
test -x "$environment/bin/python" || "${PYTHON:-python3.11}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps bfcl-eval==2026.3.23 \
  tree-sitter==0.21.3 tree-sitter-java==0.21.0 tree-sitter-javascript==0.21.4 setuptools==80.9.0 \
  filelock==3.20.0 tenacity==9.1.2
"$environment/bin/python" -c 'import importlib.metadata as m; print("bfcl-eval", m.version("bfcl-eval"))'
