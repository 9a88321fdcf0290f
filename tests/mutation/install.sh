#!/bin/sh
# mutmut beside what the project has installed, in .cache/mutation/venv. It forks, so it needs Linux or a Mac.
# PYTHON names the project's interpreter.
set -eu
cd "$(dirname "$0")/../.."
environment=.cache/mutation/venv
packages=$("${PYTHON:-.venv/bin/python}" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
test -x "$environment/bin/python" || "${PYTHON:-.venv/bin/python}" -m venv "$environment"
# named first, so that pytest and the rest stay the project's own and pip adds only what is missing
echo "$packages" > "$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/project.pth"
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check 'mutmut==3.8.1'
