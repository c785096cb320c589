# make demo: install and watch the main job run.  make demo-vlm: the same with images.  make test: install and check everything.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet

# the order of the files is that of tests/conftest.py: those that take long come first
# one more than there are cores, since some wait for what they have started
PYTEST = $(BIN)/python -m pytest -n $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 8 ? n + 1 : 8))) --dist loadfile --no-loadscope-reorder
# torch's DataLoader forks, and Ray's workers end, or hang, where other tests have loaded libraries that start threads of their own
APART = tests/integrations/ tests/cluster/

# the tests start some hundred processes, each of which would compile all that it imports of this tree
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-vlm test lint format bench yardsticks stub clean
.DEFAULT_GOAL := test

demo: $(VENV)/demo.stamp
	$(BIN)/zephon demo

demo-vlm: $(VENV)/demo-vlm.stamp
	$(BIN)/zephon demo --vlm --dir $(VENV)/demo-vlm

test: lint
	$(PYTEST) $(filter-out $(APART) tests/__pycache__/,$(wildcard tests/*/))
	$(PYTEST) $(APART)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/mypy zephon/pipeline.py  # by name: the stub for editors hides it from the run above

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Zephon beside Grain, LitData, Streaming, …: a table and charts. Makes an environment per group of peers (6 GB with torch).
# CASES="B1 B3" PEERS="grain litdata" REPEATS=5 IMAGES=800 MEGABYTES=64 DOCUMENTS=20000, or QUICK=1 to see that everything works
bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.peers --charts $(if $(QUICK),--quick) \
	$(foreach c,$(CASES),--only $(c)) $(if $(PEERS),--peer ours $(foreach p,$(PEERS),--peer $(p))) \
	$(foreach o,REPEATS IMAGES MEGABYTES DOCUMENTS,$(if $($(o)),--$(shell echo $(o) | tr A-Z a-z) $($(o))))

# beside the bare libraries
yardsticks: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks

stub: $(VENV)/dev.stamp
	$(BIN)/python -m zephon.cli.stub

clean:
	rm -rf $(VENV)

# an install is repeated when the project file changes; the one for tests has all that the demo needs
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/demo-vlm.stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[demo-vlm]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[dev]'
	touch $(VENV)/demo.stamp $(VENV)/demo-vlm.stamp $@
