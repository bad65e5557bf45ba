# Every target makes the environment that it needs (scripts/setup.py) and is silent about it when nothing changed.
#   ARGS    more arguments for demo, test, bench, integrations, storm:  make test ARGS="-x -k resume"
#   PYTHON  the interpreter to start from (3.11 or newer):              PYTHON=python3.12 make test
#   WORKERS processes that share the tests (0: none but this one):      WORKERS=8 make test
#   RESUME  go on with the newest demo run:                             make demo RESUME=1
#   TORCH   another torch than the tested one:                          TORCH=torch==2.6.0 make test

PYTHON ?= python3
ARGS ?=
WORKERS ?= 2
BIN := .venv/bin

# One OpenMP thread unless the user says otherwise: its threads wait for each other by spinning, so where several
# processes (ranks, a test runner, other jobs) share the cores, small tensors get many times slower, not faster.
ONE_THREAD := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1}

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test coverage check bench docs integrations storm clean setup-demo setup-test setup-dev setup-docs

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: setup-demo ## train a small model and show what the bus does (RESUME=1: go on with the last one)
	@$(ONE_THREAD) $(BIN)/python -m eventloop demo $(if $(RESUME),--resume) $(ARGS)

test: setup-test ## the tests
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not integration and not storm" $(ARGS) tests

coverage: setup-test ## the tests once more, with the branches that they reach
	@$(BIN)/python -m coverage erase
	$(ONE_THREAD) $(BIN)/python -m coverage run -m pytest -m "not integration and not storm" $(ARGS) tests
	@$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

check: setup-dev ## format, lint and types, as a reviewer would ask for
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup-test ## the speed ratios
	$(BIN)/python -m tests.benchmarks $(ARGS)

docs: setup-docs ## the documentation, into site/
	$(BIN)/python -m mkdocs build --strict --site-dir site

integrations: setup-test ## tests with other frameworks and several processes
	$(ONE_THREAD) $(BIN)/python -m pytest -m integration $(ARGS) tests

storm: setup-test ## long randomized runs and kills
	HYPOTHESIS_PROFILE=random $(ONE_THREAD) $(BIN)/python -m pytest -m storm $(ARGS) tests

clean: ## remove the environment, caches and built files (runs/ is yours and stays)
	rm -rf .venv .venv-tools .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis site build dist bench-out*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup-demo setup-test setup-dev setup-docs: setup-%:
	@$(PYTHON) scripts/setup.py $*
