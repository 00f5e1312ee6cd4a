# make install | test | test-all | lint | demo | bench | clean. Needs Python 3.11 or later, pip and make.
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install lint test test-all demo bench clean

help:
	@echo "make install   create $(VENV) with attendb, its extras and the test tools"
	@echo "make test      lint, type check and run the tests (warnings are errors)"
	@echo "make test-all  the same, with the slow tests"
	@echo "make lint      ruff and pyright"
	@echo "make demo      attention on 9 568 hours of a power plant"
	@echo "make bench     measure the engine against its peers"
	@echo "make clean     remove $(VENV) and what the tools left"

install: $(STAMP)

# The stamp is what makes this run again only when the requirements change.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable ".[sql,test,bench]"
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# Threads that wait by spinning make small blocks ten times slower as soon as something else runs on the machine.
test test-all demo: export OMP_WAIT_POLICY ?= PASSIVE

test: lint
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

test-all: lint
	$(BIN)/python -m pytest -n 2 -m "" $(PYTEST_ARGS)

demo: $(STAMP)
	$(BIN)/attendb demo

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py --threads 2

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
	find attendb tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
