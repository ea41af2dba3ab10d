# One door for everything. `make demo` and `make test` set up a fresh machine themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q

.PHONY: demo test test-long test-triton check lint types walls map bench setup system clean

demo: $(STAMP)
	$(BIN)/homestretch demo

# The timing tests run alone at the end; one that a busy machine disturbed is tried once more.
test: $(STAMP) system
	$(BIN)/python tools/check.py
	$(PYTEST) -n 2 --dist worksteal -m "not timing and not long and not triton and not gpu"
	$(PYTEST) -m "timing and not long" || $(PYTEST) -m "timing and not long" --last-failed

check: $(STAMP)
	$(BIN)/python tools/check.py
	$(PYTEST) -n 2 --dist worksteal -m "not timing and not long and not triton and not gpu"

test-long: $(STAMP)
	$(PYTEST) -m long

# Triton is large and only these tests need it here.
test-triton: $(STAMP)
	$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/python -m pip install --quiet -c constraints.txt ".[cuda]"
	TRITON_INTERPRET=1 $(PYTEST) -n 2 -m triton

map: $(STAMP)
	$(BIN)/python tools/map.py
	$(BIN)/python tools/commands.py

bench: $(STAMP)
	$(BIN)/python bench/run.py

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt tools/install.sh
	PYTHON=$(PYTHON) VENV=$(VENV) bash tools/install.sh
	touch $(STAMP)

# Chromium for the page tests, bubblewrap for running code a model wrote: installed where we may, named where we may not.
system:
	bash tools/system.sh

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build
