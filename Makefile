# Thin: every target is a line or two, and everything real is in `ae` (see README.md).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: setup demo test lint images gpu-test report clean
.DEFAULT_GOAL := demo

setup: $(VENV)/.dev

demo: $(VENV)/.run
	$(BIN)/ae run dlrm --quick

test: setup
	$(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	$(BIN)/hadolint --config .hadolint.yaml images/*/Dockerfile

images: $(VENV)/.run
	$(BIN)/ae build dlrm

gpu-test: setup
	$(BIN)/python -m pytest -m gpu

report: $(VENV)/.run
	$(BIN)/ae report

# Removes what dead launchers left behind and what can be made again; results stay.
clean:
	@if [ -x $(BIN)/ae ]; then $(BIN)/ae clean; fi
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache

# What running needs; a tool for development less to download.
$(VENV)/.run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("ae needs Python 3.11 or newer: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "making $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat --editable ".[dev]"
	@touch $@
