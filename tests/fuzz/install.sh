#!/bin/sh
# atheris beside what the project has installed, in .cache/fuzz/venv. Its wheels are for Linux.
# PYTHON names the project's interpreter.
set -eu
cd "$(dirname "$0")/../.."
environment=.cache/fuzz/venv
packages=$("${PYTHON:-.venv/bin/python}" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
test -x "$environment/bin/python" || "${PYTHON:-.venv/bin/python}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check 'atheris==3.0.0'
echo "$packages" > "$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/project.pth"
