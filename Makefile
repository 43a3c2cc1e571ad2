# `make demo` and `make test` do all set-up themselves, in .venv; a second call reuses it.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test install format benchmarks clean

demo: $(READY)
	$(BIN)/prixlm demo --to demo

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2

install: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "prixlm needs Python 3.11 or newer; pass PYTHON=... to make" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev,benchmarks,model,baselines]'
	@touch $@

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmarks: $(READY)
	$(BIN)/python benchmarks/import.py
	$(BIN)/python benchmarks/pretrain.py

clean:
	rm -rf .venv demo
