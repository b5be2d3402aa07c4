# make demo and make test do all their own set-up in .venv; they need Python 3.11 (or newer) and make.
PYTHON ?= python3.11
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-long check reference screenshots results clean
demo: .venv/ready
	$(BIN)/potluck demo

test: .venv/ready
	$(BIN)/pytest -q -n 2 --dist loadfile -m 'not long and not alone'
	$(BIN)/pytest -q -m alone

test-long: .venv/ready
	$(BIN)/pytest -q -m long

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

screenshots: .venv/ready
	$(BIN)/python scripts/screenshots.py

# Generates docs/reference from the settings classes; a test checks that it is current.
reference: .venv/ready
	$(BIN)/python scripts/reference.py

# Generates docs/results.md and the README's figures from benchmarks/results/*.json; measures nothing
# (`potluck bench all --full` and `python -m benchmarks.peers all --full` do).
results: .venv/ready
	$(BIN)/potluck bench --results docs/results.md
	$(BIN)/python -m benchmarks.headline_figures

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
