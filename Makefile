# Every target sets up what it needs in .venv, with python3, pip and make alone.
PYTHON ?= python3
TORCH_INDEX ?=
JOBS ?= 2
ATTACK ?=
VERSIONS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
TORCH := torch==2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-all test-attack test-versions check format bench \
  docs package clean

help:
	@echo "make demo         train, prune and compact a small network on the digits in the package"
	@echo "make test         run the tests and the examples in the docstrings"
	@echo "make test-all     the same with the slow tests"
	@echo "make test-attack  hostile input, signals, streams and files, with counts; some minutes"
	@echo "make test-versions  a part of the tests on the oldest and newest torch, Python and extras; GBs"
	@echo "make check        ruff (lint, format) and mypy"
	@echo "make format       let ruff rewrite the code"
	@echo "make bench        run the benchmarks"
	@echo "make docs         build the documentation into site/; a broken link fails it"
	@echo "make package      build wheel and sdist into dist/ and try both in empty environments"
	@echo "make setup        only create .venv (every target above does it when needed)"
	@echo "make clean        remove .venv, caches and builds"
	@echo ""
	@echo "PYTHON=python3      the interpreter .venv is made with (3.11 or newer)"
	@echo "TORCH_INDEX=URL     extra package index for torch, such as one of CPU-only wheels"
	@echo "JOBS=2              test processes; 0 runs the tests in one"
	@echo "ATTACK='signals --seconds 600 --seed 1'  one attack, longer than 60 s, with other cases"
	@echo "VERSIONS=oldest     one environment of test-versions (scripts/versions.py lists them)"
	@echo "L0ARM_DATA_DIR=DIR  folder of the MNIST files, for the tests in test-all that need them"

setup: $(STAMP)

# torch comes first and pinned, so that the second install finds it and fetches no other build.
# The stamp is touched last: an install that fails leaves none, and the next make tries again.
$(STAMP): pyproject.toml
	@rm -f $@
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: no '$(PYTHON)' found; name one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: l0arm needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
	       "name a newer one with: make PYTHON=python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV) with $(TORCH) and the development tools (minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH)
	@$(PIP) -e ".[dev]"
	@touch $@

demo: $(STAMP)
	@echo "Running the demo"
	@$(BIN)/python examples/demo.py

test: $(STAMP)
	@echo "Running the tests"
	@$(PYTEST)

test-all: $(STAMP)
	@echo "Running all tests, the slow ones too"
	@$(PYTEST) -m ""

test-attack: $(STAMP)
	@echo "Attacking the library and the command line"
	@$(BIN)/python -m tests.attack $(ATTACK)

# The environments have interpreters of their own, python3.11 to python3.13 on the PATH.
test-versions:
	@echo "Testing the oldest and the newest versions"
	@$(PYTHON) scripts/versions.py --index "$(TORCH_INDEX)" --jobs $(JOBS) $(VERSIONS)

check: $(STAMP)
	@echo "Checking style and types"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP)
	@echo "Rewriting the code in ruff's format"
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)
	@echo "Running the benchmarks"
	@$(BIN)/l0arm bench

# mkdocs is not a development tool of every day: it is installed when the site is first asked for.
DOCS_STAMP := $(VENV)/.stamp-docs
$(DOCS_STAMP): $(STAMP)
	@$(PIP) -e ".[docs]"
	@touch $@

docs: $(DOCS_STAMP)
	@echo "Building the documentation into site/"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package:
	@echo "Building wheel and sdist into dist/, and trying each in an empty environment"
	@$(PYTHON) scripts/check_package.py --torch $(TORCH) --index "$(TORCH_INDEX)"

clean:
	@echo "Removing $(VENV), caches and builds"
	@rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
