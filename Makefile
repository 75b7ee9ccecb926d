# Everything runs in a virtual environment of its own; `make clean` removes it.
# Needs Python 3.11 or later, and a package registry.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
READY_TO_TEST := $(VENV)/ready-to-test
INSTALL := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test check crashes bench diagram clean

help:
	@echo "make demo      play a conversation, and look at its two histories"
	@echo "make test      run the tests"
	@echo "make check     formatting, lint, types, import directions, diagrams"
	@echo "make crashes   crash everything at random for five minutes; ARGS='--seconds 3600 --seed 7' for more"
	@echo "make bench     print speed as ratios within one run, beside other frameworks and bare SQLite"
	@echo "make diagram   bring the README's diagrams up to date"
	@echo "make clean     remove the virtual environment and all caches"

demo: $(READY)
	@$(BIN)/batonlog demo
	@$(BIN)/batonlog demo --chain

test: $(READY_TO_TEST)
	@$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

check: $(READY_TO_TEST)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy -p batonlog.events -p batonlog.projections -p batonlog.engine
	$(BIN)/mypy tests
	$(BIN)/lint-imports
	$(BIN)/batonlog diagram --check README.md

crashes: $(READY_TO_TEST)
	@$(BIN)/python -m tests.engine.crashes $(ARGS)

bench: $(READY_TO_TEST)
	@$(INSTALL) --group bench
	@$(BIN)/python -m benchmarks

diagram: $(READY)
	@$(BIN)/batonlog diagram --write README.md

clean:
	rm -rf $(VENV) build dist batonlog.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made again when pyproject.toml changes. The demo needs less than the tests.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV): this takes a minute, once."
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --editable .
	@touch $@

# pip knows dependency groups from 25.1 on.
$(READY_TO_TEST): $(READY)
	@$(INSTALL) --upgrade "pip>=25.1"
	@$(INSTALL) --editable . --group dev
	@touch $@
