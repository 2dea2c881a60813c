# The two commands of the README, and what developers add. Each sets up what it needs in .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# Two processes on two cores, no threads that wait, files kept together, and what is compiled once is kept.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 --dist worksteal

.PHONY: demo test fuzz lint bench clean docs docs-test

demo: $(VENV)/.demo
	$(BIN)/vitreous demo --out demo

test: $(VENV)/.test
	$(PYTEST)

fuzz: $(VENV)/.test
	VITREOUS_FUZZ=long $(PYTEST) -m "fuzz or hypothesis"

# Half an hour; nothing else should run meanwhile.
bench: $(VENV)/.test
	$(BIN)/vitreous bench --precision float32,bfloat16,int8 --merge-tokens 16 --out docs/benchmarks.md

# The site is build/site/index.html.
docs: $(VENV)/.docs
	$(BIN)/python docs/build_site.py

# Every command and code block of the README and the tutorials.
docs-test: $(VENV)/.test
	$(PYTEST) tests/test_readme.py tests/tutorials.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch first and alone: a range that admits a newer build would fetch gigabytes of CUDA packages.
$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt torch
	touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) install --quiet --constraint constraints.txt --editable ".[demo,serve]"
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) install --quiet --constraint constraints.txt --editable ".[demo,serve,test,lint]"
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) install --quiet --constraint constraints.txt --editable ".[demo,serve,docs]"
	touch $@

clean:
	rm -rf $(VENV) demo build .pytest_cache .mypy_cache .ruff_cache .hypothesis
