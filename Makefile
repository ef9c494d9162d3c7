# Needs Python 3.11 or newer and make; everything else goes into a virtual environment of its own.
#   make demo                     a first run: sample random transformers, show them, plot them
#   make test PYTHON=python3.12   another interpreter (in a venv of its own: VENV=.venv-312)
#   make test PYTEST_ARGS="-n 0 -k parity"

PYTHON ?= python3
VENV ?= .venv
# Two workers, each test file's jit caches mostly on one of them.
PYTEST_ARGS ?= -n 2 --dist worksteal

DEMO_OUT ?= demo/run
DEMO_SHAPE ?= --length 8 --num-layers 2 --d-model 16 --num-heads 2 --d-mlp 64 --norm pre --eps 0
DEMO_INIT ?= --init uniform --scale 10
DEMO_MODELS ?= 20000
DEMO_SEED ?= 0
BENCH_ARGS ?=

BIN := $(VENV)/bin
# Evaluated inside the recipes, once the venv is there: its own interpreter decides.
CONSTRAINTS = $(shell $(BIN)/python -c 'import sys; print("constraints/py311.txt" if sys.version_info < (3, 12) else "constraints/py312.txt")')
PIP_INSTALL = $(BIN)/python -m pip --disable-pip-version-check install --quiet -c $(CONSTRAINTS)
INPUTS := pyproject.toml $(wildcard constraints/*.txt)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test bench lint types format notebooks clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed ## sample random transformers into demo/run, show the numbers, plot them
	$(BIN)/jaxsens sample $(DEMO_SHAPE) $(DEMO_INIT) --models $(DEMO_MODELS) --seed $(DEMO_SEED) --out $(DEMO_OUT)
	$(BIN)/jaxsens show $(DEMO_OUT)
	$(BIN)/jaxsens plot $(DEMO_OUT) --out $(DEMO_OUT).png

test: $(VENV)/.installed-test ## the test suite (PYTEST_ARGS="..." for pytest)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

bench: $(VENV)/.installed-bench ## all strings beside PyTorch and JAX peers, and growth (half an hour, an idle machine)
	$(BIN)/python benchmarks/exhaustive.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/growth.py

lint: $(VENV)/.installed-lint ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-lint ## pyright on the package
	$(BIN)/python -m pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-lint ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

notebooks: $(VENV)/.installed-test ## execute notebooks/*.py and leave them, with their output, in build/notebooks
	@mkdir -p build/notebooks
	@set -e; for source in notebooks/*.py; do \
	  [ -e "$$source" ] || { echo "notebooks/ holds no .py file"; exit 0; }; \
	  result=build/notebooks/$$(basename "$$source" .py).ipynb; \
	  $(BIN)/python -m jupytext --quiet --to ipynb --output "$$result" "$$source"; \
	  (cd build/notebooks && PATH="$(abspath $(BIN)):$$PATH" "$(abspath $(BIN))/jupyter-execute" --inplace "$$(basename "$$result")"); \
	  echo "$$result"; \
	done

clean: ## remove the virtual environments, demo/ and everything built or cached
	rm -rf .venv .venv-* demo build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/pyvenv.cfg:
	@command -v $(PYTHON) > /dev/null || { echo "jaxsens needs Python 3.11 or newer: there is no $(PYTHON); name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "jaxsens needs Python 3.11 or newer: $(PYTHON) is %d.%d; name another with make PYTHON=..." % v[:2])'
	$(PYTHON) -m venv $(VENV)

# A stamp for each set of packages: installed again only when pyproject.toml or the constraints change.
$(VENV)/.installed: $(VENV)/pyvenv.cfg $(INPUTS)
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/pyvenv.cfg $(INPUTS)
	$(PIP_INSTALL) -e '.[test]'
	@touch $@

$(VENV)/.installed-bench: $(VENV)/pyvenv.cfg $(INPUTS)
	$(PIP_INSTALL) -e '.[bench]'
	@touch $@

$(VENV)/.installed-lint: $(VENV)/pyvenv.cfg $(INPUTS)
	$(PIP_INSTALL) -e '.[lint]'
	@touch $@
