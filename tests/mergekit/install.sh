#!/bin/sh
# mergekit in an environment of its own, .cache/mergekit: its dependencies are no concern of this project's.
# PYTHON names the interpreter; PIP_EXTRA_INDEX_URL can name an index with CPU builds of torch.
set -eu
cd "$(dirname "$0")/../.."
environment=.cache/mergekit
test -x "$environment/bin/python" || "${PYTHON:-python3.11}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check mergekit==0.1.5 torch==2.13.0
"$environment/bin/python" -c 'import importlib.metadata as m; print("mergekit", m.version("mergekit"), "torch", m.version("torch"))'
