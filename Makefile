# Every target sets up .venv by itself; a second call reuses it.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-full test-cluster docs results wheel-check install format benchmarks clean

demo: $(READY)
	$(BIN)/prixlm demo --to demo

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	HF_HUB_OFFLINE=1 $(BIN)/python -m slipcover --json --out .coverage.json -m pytest -n 2 --dist loadfile
	@$(BIN)/python -c 'import json; summary = json.load(open(".coverage.json"))["summary"]; \
		print("Coverage of src/prixlm: %.1f %% of the lines" % summary["percent_covered"])'

# The same with ten times as many generated inputs; PRIXLM_TEST_FULL=6 tries six times that.
test-full: export PRIXLM_TEST_FULL ?= 1
test-full: test

# Kill workers, nodes and drivers of a Ray cluster of three nodes at random moments: ten rounds of
# a job without a model, three of `complete`. Nodes leave and join; every command runs on Ray.
test-cluster: $(READY)
	PRIXLM_TEST_CLUSTER=1 $(BIN)/python -m pytest \
		tests/engine/test_cluster.py tests/engine/test_cluster_commands.py

docs: $(READY)
	$(BIN)/mkdocs build --strict

# Write the tables of docs/results from the JSON files of docs/results/data.
results: $(READY)
	$(BIN)/python docs/_generate/results.py

# Build the wheel, install it outside the tree, and run the first steps of the demo (part of `test`).
wheel-check: $(READY)
	$(BIN)/python -m pytest tests/test_wheel.py

install: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "prixlm needs Python 3.11 or newer; pass PYTHON=... to make" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev,docs,benchmarks,model,serve,ja,baselines,ray]'
	@touch $@

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmarks: $(READY)
	$(BIN)/python benchmarks/import.py
	$(BIN)/python benchmarks/pretrain.py

clean:
	rm -rf .venv demo site dist .coverage.json
