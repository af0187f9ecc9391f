# `make help` lists the targets. Needs Python 3.11 or newer and make; everything else is installed
# into .venv, once, and again only when pyproject.toml or constraints.txt changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WORKERS ?= auto
# Tests of a file mostly stay together, so that what they share is made once; a worker that has
# nothing left takes over from another's end.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal
# Independent implementations that tests and benchmarks compare with; the library needs none.
PEERS := transformers==5.22.2 statsmodels==0.15.0

# Rooms whose tests compile little.
QUICK := $(addprefix tests/,test_architecture.py test_registry.py test_zoo.py statistics data \
	runs/test_config.py cli/test_cli_models.py training/test_training_docs.py \
	$(addprefix experiment/test_,units.py plan.py records.py matching.py))

.DEFAULT_GOAL := help
.PHONY: help setup quick test lint format compare results docs docs-serve dist peers benchmark soak fuzz storm clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(VENV)/.dev ## create .venv with everything a developer needs

quick: $(VENV)/.dev ## the tests of a moment, in under two minutes
	$(PYTEST) -m "not slow" -q $(QUICK)

test: lint ## lint, type-check and run all tests
	$(PYTEST)

lint: $(VENV)/.dev ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.dev ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

compare: $(VENV)/.run ## compare the models: table, verdicts and report in runs/quick
	$(BIN)/qkvflow compare --preset quick --out runs/quick

results: $(VENV)/.dev ## make the numbers and figures of the pages from the records in results/
	$(BIN)/python -m results

docs: $(VENV)/.dev ## build the site into site/, with all links checked
	$(BIN)/mkdocs build

docs-serve: $(VENV)/.dev ## show the site while its pages are written
	$(BIN)/mkdocs serve

dist: $(VENV)/.dev ## build the wheel and the source distribution into dist/
	$(BIN)/python -m hatchling build

peers: $(VENV)/.peers ## install PyTorch, other peers and every extra, so that no test skips

benchmark: $(VENV)/.dev $(VENV)/.peers ## measure speed beside PyTorch
	$(BIN)/python -m benchmarks

soak: $(VENV)/.dev ## train for 2,000 steps and check that memory and file handles stay flat
	$(BIN)/python -m benchmarks.soak

fuzz: $(VENV)/.dev ## 10,000 odd calls of the command line; FUZZ='--calls 500 --seed 7' for others
	$(BIN)/python -m benchmarks.fuzz $(FUZZ)

storm: $(VENV)/.dev ## kills, full disks and damaged files: what is survived, refused, lost, believed
	$(BIN)/python -m benchmarks.storm $(STORM)

clean: ## remove .venv and everything else that can be made again
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "qkvflow needs Python 3.11 or newer; choose one with 'make PYTHON=python3.12 ...'"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What `make compare` needs.
$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --constraint constraints.txt --editable '.[adaptive,figures]'
	@touch $@

# What `make test` needs; it includes the former.
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	@touch $(VENV)/.run $@

$(VENV)/.peers: Makefile $(VENV)/.dev
	$(PIP) torch==2.13.0
	$(PIP) --constraint constraints.txt --editable '.[all]' $(PEERS)
	@touch $@
