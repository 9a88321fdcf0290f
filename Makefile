# Two commands do everything on a fresh machine with a Python from 3.11 to 3.14: `make demo` and `make test`.
# PYTHON names one; without it the PATH is searched.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PORT ?= 7860

.PHONY: setup chromium demo test slow check conformance bench docs screenshots mergekit evening clean

setup: $(STAMP)

$(STAMP): requirements.txt requirements-dev.txt constraints.txt pyproject.toml
	@test -x $(BIN)/python || { python=$$(PYTHON='$(PYTHON)' .ci/find_python) && "$$python" -m venv $(VENV); }
	grep -v '^torch==' requirements.txt > $(VENV)/requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -r $(VENV)/requirements.txt -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP)

# the browser tests use Debian's Chromium; where it cannot be had they skip and say so
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { \
	  command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	} || echo "there is no chromium, and it could not be installed by apt-get as root; the browser tests will skip"

demo: setup
	$(BIN)/hubmerge demo --port $(PORT) $(ARGS)

PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadgroup

test: setup chromium
	$(PYTEST) -m "not slow"
	@echo "left out: the tests that take seconds each (tests/slow.txt, and those marked slow); 'make slow' runs them"

slow: setup chromium
	$(PYTEST) -m slow

check: setup chromium
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(PYTEST)

# the Hub client's own test suite against the embedded Hub
conformance: setup
	$(BIN)/python tests/conformance/run.py

# mergekit in its own environment, the same documents through both, and the tests that need it
mergekit: setup
	PYTHON=$(BIN)/python tests/mergekit/install.sh
	$(BIN)/python -m benchmarks.mergekit_parity
	$(BIN)/python -m pytest -q tests/mergekit

# an hour of users, watchers, faults, kills and full disks, and what was lost; ARGS="--minutes 5 --seed 2" for less
evening: setup
	$(BIN)/python -m benchmarks.evening $(ARGS)

bench: setup
	$(BIN)/python -m benchmarks.suite

# every page at three widths, light and dark, in build/screenshots; ARGS="-k 'accessible and job'" for less
screenshots: setup chromium
	HUBMERGE_SCREENSHOTS=build/screenshots $(BIN)/python -m pytest tests/workflows/app/test_ui_access.py -k accessible $(ARGS)

# the pages that are generated from the code
docs: setup
	$(BIN)/python -m hubmerge.cli.methods > docs/methods.md
	$(BIN)/python -m hubmerge.recipe.schema > docs/recipe.schema.json
	HUBMERGE_WRITE_MISTAKES=1 $(BIN)/python -m pytest -q tests/cli/test_cli_mistakes.py

clean:
	rm -rf data out benchmarks/out .cache .pytest_cache .mypy_cache .ruff_cache
