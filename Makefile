# Two commands do everything on a machine with Python, pip and a package index:
#
#   make demo     environment, install, and the whole pipeline on real text
#   make test     environment, install, all tests
#
# Everything lives in .venv, but for other projects, which have .venv-peers: their pins are not ours. Each
# step leaves a stamp, so the second time costs nothing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
AZURITE := tests/storage/azurite
PIP    := -m pip --disable-pip-version-check --no-input -qq install
# Environments are filled by uv, which takes a tenth of pip's time; torch by pip, which finds builds that uv does not.
UV     := $(BIN)/uv pip install -q --system-certs --compile-bytecode --python
INSTALL := $(UV) $(BIN)/python -c constraints.txt
PYTEST := tools/in-memory.sh $(BIN)/python -m pytest -n auto --dist worksteal --durations=25 --durations-min=10

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-fast check lint format docs bench bench-quick peers browser azurite slurm pictures screenshots package lowest lock clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 \2/p' $(MAKEFILE_LIST) | awk '{ printf "  make %-11s", $$2; $$1 = $$2 = ""; print }'

setup: $(VENV)/.dev ## make .venv with packline and the tools of its development
	@echo "packline: $(VENV) is ready"

demo: $(VENV)/.base ## build, verify and show a store of the standard library's own text
	@$(BIN)/packline demo

test: $(VENV)/.dev ## run all tests
	@$(PYTEST)

test-long: $(VENV)/.torch $(VENV)-peers/.done ## run the random tests for long, as before a release (an hour)
	@PACKLINE_ALL=1 PACKLINE_KILLS=50 PACKLINE_DAMAGES=40 $(PYTEST) --timeout=3000 -m long

test-fast: $(VENV)/.dev ## run the tests that take seconds
	@$(PYTEST) -m "not slow"

check: lint ## format, lint, types, layers, docs
	@$(BIN)/python -m pytest -q -m "not slow" tests/project

lint: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.dev ## rewrite the files the way `make check` wants them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.docs ## build the documentation site into build/site; warnings are errors
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs build/site
	@echo "packline: open build/site/index.html"

bench: $(VENV)/.dev $(VENV)-peers/.done ## measure packline beside other tools and write the tables (40 minutes)
	@$(BIN)/python -m benchmarks corpus
	@$(BIN)/python -m benchmarks run
	@$(BIN)/python -m benchmarks render

WITH ?= HEAD

bench-quick: $(VENV)/.dev ## compare the speed of the working tree with WITH=COMMIT (3 minutes); an error if it is slower
	@$(BIN)/python -m benchmarks quick --with $(WITH)

peers: $(VENV)/.torch $(VENV)-peers/.done ## install torch, and .venv-peers with the projects that tests compare with

browser: ## install Chromium and fonts, with which tests look at the pages
	@tools/install-browser.sh

azurite: $(VENV)/.azurite ## install the Azure server of the tests (npm, 365 MB)

slurm: ## install Slurm, with which tests run the array script, where that is possible
	@tools/install-slurm.sh

pictures: browser $(VENV)/.dev ## take the pictures of docs/pictures from pages of the demo's store
	@$(BIN)/python -m tools.pictures

screenshots: browser $(VENV)/.dev ## take pictures of every page of the viewer in many scripts, and judge them
	@$(BIN)/python -m tools.screenshots

package: $(VENV)-package/.done ## build wheel and sdist into dist, and try both in a clean environment
	@rm -rf dist build/from-sdist
	@$(VENV)-package/bin/hatchling build -d dist >/dev/null
	@$(VENV)-package/bin/python $(PIP:install=wheel) --no-deps --no-build-isolation -w build/from-sdist dist/*.tar.gz
	@$(VENV)-package/bin/python tools/check_wheel.py dist/*.whl build/from-sdist/*.whl
	@$(VENV)-package/bin/python $(PIP) --force-reinstall --no-deps build/from-sdist/*.whl
	@tools/smoke.sh $(VENV)-package/bin

lowest: $(VENV)-lowest/.done ## try packline with the lowest versions it allows, and beside transformers 4.51
	@tools/smoke.sh $(VENV)-lowest/bin
	@$(UV) $(VENV)-lowest/bin/python --dry-run . numpy==2.2.6 transformers==4.51.3 datasets==3.6.0
	@echo "packline: the lowest versions work, and transformers 4.51, datasets 3.6 and numpy 2.2 fit"

lock: ## resolve the newest versions into constraints.txt
	@$(PYTHON) tools/lock.py

clean: ## remove the environments and all caches
	rm -rf $(VENV) $(VENV)-peers $(VENV)-package $(VENV)-lowest $(AZURITE)/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# ------------------------------------------------------------------------------------ environment

# Some distributions ship venv without ensurepip; the system's own pip then fills the gap.
define make-environment
	@$(PYTHON) -m venv --clear $(1) >/dev/null 2>&1 || { \
	  $(PYTHON) -m venv --clear --without-pip $(1) && \
	  $(PYTHON) -m pip --python $(1)/bin/python --disable-pip-version-check -qq install pip; }
endef

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "packline needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "packline: making $(VENV) with $$($(PYTHON) --version)"
	$(call make-environment,$(VENV))
	@$(BIN)/python $(PIP) -c constraints.txt uv
	@touch $@

$(VENV)/.base: $(VENV)/.made pyproject.toml constraints.txt
	@echo "packline: installing packline (half a minute the first time)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "packline: installing the development tools"
	@$(INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@echo "packline: installing the generator of the documentation"
	@$(INSTALL) -e '.[docs]'
	@touch $@

# What packline.torch is tested with. It loads in the tests' own process, so it is here and not with the peers.
$(VENV)/.torch: $(VENV)/.dev
	@echo "packline: installing torch (large)"
	@$(BIN)/python $(PIP) -c constraints.txt torch
	@$(INSTALL) torchdata
	@touch $@

# A clean environment: packline's requirements as pip chooses them today, and the backend that builds.
$(VENV)-package/.done: pyproject.toml | $(VENV)/.made
	@echo "packline: making $(VENV)-package"
	$(call make-environment,$(VENV)-package)
	@$(UV) $(VENV)-package/bin/python . $$(sed -n '/^requires = /{s/^requires = //;s/[]",[]//g;p}' pyproject.toml)
	@touch $@

$(VENV)-lowest/.done: pyproject.toml tools/lowest.py $(shell find src -name '*.py') | $(VENV)/.made
	@echo "packline: making $(VENV)-lowest with the lowest versions that packline allows"
	$(call make-environment,$(VENV)-lowest)
	@mkdir -p build && $(VENV)-lowest/bin/python tools/lowest.py > build/lowest.txt
	@$(UV) $(VENV)-lowest/bin/python -c build/lowest.txt . transformers==4.51.3
	@touch $@

$(VENV)/.azurite: $(AZURITE)/package.json | $(VENV)/.dev
	@npm --prefix $(AZURITE) install --silent --no-audit --no-fund --no-package-lock
	@touch $@

# Torch first; last, and without their requirements, the lines that are marked so (peers.txt says why).
$(VENV)-peers/.done: peers.txt | $(VENV)/.made
	@echo "packline: making $(VENV)-peers with the projects that packline is compared with"
	$(call make-environment,$(VENV)-peers)
	@$(VENV)-peers/bin/python $(PIP) $$(grep '^torch==' peers.txt)
	@$(UV) $(VENV)-peers/bin/python $$(sed '/# alone/d; s/#.*//' peers.txt)
	@$(UV) $(VENV)-peers/bin/python --no-deps $$(sed -n 's/ *# alone$$//p' peers.txt)
	@touch $@
