# Two commands matter: `make demo` and `make test`. Both make .venv when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint types unit slow clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
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

clean:
	rm -rf .venv build dist rarely-demo
