# Two commands do everything on a machine with Python, pip and a package index:
#
#   make demo     environment, install, and the whole pipeline on real text
#   make test     environment, install, all tests
#
# Everything lives in .venv. Each step leaves a stamp, so the second time costs nothing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := -m pip --disable-pip-version-check --no-input -qq install
INSTALL := $(BIN)/python $(PIP) -c constraints.txt
PEERS  := $(VENV)-peers/bin/python $(PIP)
PYTEST := $(BIN)/python -m pytest -n auto
MEGATRON := megatron-core==0.16.1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast check format bench peers lock clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 \2/p' $(MAKEFILE_LIST) | awk '{ printf "  make %-11s", $$2; $$1 = $$2 = ""; print }'

setup: $(VENV)/.dev ## make .venv with packline and the tools of its development
	@echo "packline: $(VENV) is ready"

demo: $(VENV)/.base ## build, verify and show a store of the standard library's own text
	@$(BIN)/packline demo

test: $(VENV)/.dev ## run all tests
	@$(PYTEST)

test-fast: $(VENV)/.dev ## run the tests that take seconds
	@$(PYTEST) -m "not slow"

check: $(VENV)/.dev ## format, lint, types, layers, docs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q tests/project

format: $(VENV)/.dev ## rewrite the files the way `make check` wants them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)-peers/.installed ## measure packline beside other tools and write the tables (40 minutes)
	@$(BIN)/python -m benchmarks corpus
	@$(BIN)/python -m benchmarks run
	@$(BIN)/python -m benchmarks render

peers: $(VENV)/.peers ## add to .venv the other projects that tests compare with

lock: ## resolve the newest versions into constraints.txt
	@$(PYTHON) tools/lock.py

clean: ## remove the environments and all caches
	rm -rf $(VENV) $(VENV)-peers build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# ------------------------------------------------------------------------------------ environment

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "packline needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "packline: making $(VENV) with $$($(PYTHON) --version)"
	@# Some distributions ship venv without ensurepip; the system's own pip then fills the gap.
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check -qq install pip; }
	@touch $@

$(VENV)/.base: $(VENV)/.made pyproject.toml constraints.txt
	@echo "packline: installing packline (a minute or two the first time)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "packline: installing the development tools"
	@$(INSTALL) -e '.[dev]'
	@touch $@

# Megatron without its requirements, which are far larger than the one module that is compared with.
$(VENV)/.peers: $(VENV)/.dev
	@echo "packline: installing the peers of the tests (torch is large)"
	@$(INSTALL) torch
	@$(INSTALL) torchdata
	@$(INSTALL) --no-deps $(MEGATRON)
	@touch $@

# What is only measured lives apart: its pins are not ours. Torch first, at the version that is named.
$(VENV)-peers/.installed: $(VENV)/.dev benchmarks/peers.txt
	@echo "packline: making $(VENV)-peers with the tools that packline is measured beside"
	@$(BIN)/python -m venv --clear $(VENV)-peers
	@$(PEERS) $$(grep '^torch==' benchmarks/peers.txt)
	@$(PEERS) -r benchmarks/peers.txt
	@$(PEERS) --no-deps $(MEGATRON)
	@touch $@
