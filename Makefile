# Two commands matter: `make demo` and `make test`. Both make .venv when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint types unit slow fuzz docs release-check clean

INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e

setup: .venv/.ready

# What a user needs; what the tests need on top of it takes minutes more.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) '.[onnxruntime]'
	touch $@

.venv/.ready: .venv/.installed
	$(INSTALL) '.[dev]'
	touch $@

demo: .venv/.installed
	$(BIN)/rarely demo

test: lint types unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# One thread per worker: two workers with two threads each wait for each other most of the time on two cores.
unit: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

slow: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m slow

# Damaged files for every parser, each for so many seconds; what is found goes to findings/.
SECONDS ?= 60
fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python scripts/fuzz.py --seconds $(SECONDS)

# Into site/; a broken link, a page outside the navigation or any other warning fails. The variable silences an
# announcement of the theme's authors.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What a release must pass: build, metadata, and the wheel in an empty environment.
release-check: setup
	BIN=$(BIN) PYTHON=$(PYTHON) scripts/release_check.sh

clean:
	rm -rf .venv build dist site rarely-demo
