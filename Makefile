# Thin: every target is a line or two, and everything real is in `ae` (see README.md).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --quiet --no-compile --disable-pip-version-check

# What `make image`, `bundle` and `push` are about.
IMAGE   := dlrm
FLAVOUR := cpu

.PHONY: setup demo test lint lock images gpu-test report clean dist site image bundle push
.DEFAULT_GOAL := demo

setup: $(VENV)/.dev

# Without a GPU an image would bring nothing but a longer wait.
demo: $(VENV)/.run
	$(BIN)/ae run dlrm --quick $$(nvidia-smi -L >/dev/null 2>&1 || echo --engine local)

# The tests of the engine and of Slurm have a worker each, which mostly waits; the others share two,
# by file, the slow ones first (conftest.py).
test: setup
	$(BIN)/python -m pytest -n 4 --dist loadgroup --no-loadscope-reorder

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	$(BIN)/hadolint --config .hadolint.yaml images/*/Dockerfile

# What `make setup` installs, by hash. `make lock UPGRADE=--upgrade` takes the newest that fit.
lock: setup
	$(BIN)/uv pip compile pyproject.toml --extra dev --output-file requirements-dev.txt \
	    --universal --python-version 3.11 --generate-hashes --only-binary :all: \
	    --no-annotate --custom-compile-command "make lock" --quiet $(UPGRADE)

images: $(VENV)/.run
	$(BIN)/ae build dlrm

gpu-test: setup
	$(BIN)/python -m pytest -m gpu

report: $(VENV)/.run
	$(BIN)/ae report

# What .github/workflows/release.yml publishes (docs/publishing.md), into dist/. A wheel is built
# from its source distribution.
dist: setup
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist .
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist images/collector

site: $(VENV)/.run
	$(BIN)/ae site dist/site

# The locked image where it is published, else what is built here.
image: $(VENV)/.run
	$(BIN)/ae pull $(IMAGE) --flavour $(FLAVOUR) || $(BIN)/ae build $(IMAGE) --flavour $(FLAVOUR)

push: $(VENV)/.run
	$(BIN)/ae push $(IMAGE) --flavour $(FLAVOUR)

# In parts, because a file of a release on GitHub has less than 2 GiB.
bundle: TAR = dist/$(IMAGE)-$(FLAVOUR).tar
bundle: $(VENV)/.run
	mkdir -p dist && $(BIN)/ae bundle $(IMAGE) --flavour $(FLAVOUR) --output $(TAR)
	cd dist && sha256sum $(notdir $(TAR)) >$(notdir $(TAR)).sha256
	gzip --stdout $(TAR) | split --bytes=1900M - $(TAR).gz. && rm $(TAR)

# Removes what dead launchers left behind and what can be made again; results stay.
clean:
	@if [ -x $(BIN)/ae ]; then $(BIN)/ae clean; fi
	rm -rf $(VENV) dist *.egg-info images/*/src/*.egg-info .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("ae needs Python 3.11 or newer: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "making $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)

# What running needs; a tool for development less to download.
$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	@echo "installing ae and what it needs (a minute or two)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml requirements-dev.txt | $(VENV)/bin/python
	@echo "installing ae and the tools of its tests, as locked (a few minutes)"
	@$(PIP) --require-hashes --requirement requirements-dev.txt
	@$(PIP) --no-deps --config-settings editable_mode=compat --editable .
	@touch $(VENV)/.run $@
