# `make demo` and `make test` set up everything they need from Python >= 3.11 alone.
VENV := .venv
BIN := $(VENV)/bin
# A file stays on one of the two workers, so that what its tests share is made once. Files run in
# the order that tests/conftest.py gives them, not those of most tests first.
PYTEST = $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
QUICK = $(addprefix tests/unit/,core physics records report store workloads) \
	--ignore-glob='*/test_cyclic_exact.py' --ignore-glob='*/test_verdict.py'  # the longest of them
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Byte code is kept, whatever the machine says: rewriting the assertions of all tests takes each
# worker half a minute, and commands that tests start would compile what they import.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test check types suite quick fix gpu bench docs pictures calibrate dist study clean

demo: $(VENV)/.runtime  ## the main job on the simulated GPU: a table here, a page in underclock-demo/
	$(BIN)/underclock demo $(if $(wildcard underclock-demo/report.html),--force) -o underclock-demo
	@echo "the command is $(BIN)/underclock; after \`. $(BIN)/activate\` it is underclock"

test: check  ## everything CI runs; no GPU needed

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/budget.py
	$(MAKE) --no-print-directory -j2 types suite  # types take one core for half a minute

types: $(VENV)/.dev
	$(BIN)/mypy

suite: $(VENV)/.dev $(VENV)/.browser
	$(PYTEST) -m 'not gpu' --ignore=tests/gpu --cov --cov-report=
	$(BIN)/coverage report --fail-under=90
	$(BIN)/coverage report --include='*/underclock/core/*' --fail-under=95 > /dev/null
	$(BIN)/coverage report --include='*/underclock/hw/lease.py' --fail-under=100 > /dev/null

quick: $(VENV)/.dev  ## in seconds: the style, and what needs no GPU, not even a simulated one
	$(BIN)/ruff check .
	HYPOTHESIS_PROFILE=dev $(PYTEST) -q -m 'not slow and not gpu' $(QUICK)

fix: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

gpu: $(VENV)/.dev  ## on a machine with an NVIDIA GPU: reads it and writes nothing
	$(BIN)/pytest -m gpu

bench: $(VENV)/.dev  ## speed against HiGHS, in one run
	PYTHONPATH=tests $(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/startup.py

docs: $(VENV)/.dev  ## the documentation as a site, in underclock-docs/
	$(BIN)/mkdocs build

pictures: $(VENV)/.dev $(VENV)/.browser  ## of the documentation: the demo's page, in docs/images/
	$(BIN)/python tools/pictures.py

calibrate: $(VENV)/.dev  ## fit the simulated GPUs to ../shared/data, into the package's data
	OMP_NUM_THREADS=1 $(BIN)/python studies/calibrate.py ../shared/data

dist: $(VENV)/.dev  ## the sdist, and the wheel made of it; the time in them is that of the last commit
	rm -rf dist && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/hatchling build -t sdist -d dist
	mkdir dist/of && tar -xzf dist/*.tar.gz -C dist/of --strip-components=1
	cd dist/of && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(abspath $(BIN))/hatchling build -t wheel -d ..
	rm -rf dist/of && cd dist && sha256sum *

study: $(VENV)/.job  ## make study STUDY=paper: fill that study's page of docs/evidence
	OMP_NUM_THREADS=1 $(BIN)/python studies/$(STUDY).py

clean:
	rm -rf $(VENV) dist underclock-docs underclock-demo .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "underclock needs Python 3.11 or newer; set PYTHON=/path/to/it"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.runtime

# Pages are tested in Debian's Chromium, installed where that may be done; elsewhere those tests are skipped.
$(VENV)/.browser: | $(BIN)/python
	@command -v chromium > /dev/null || test "$$(id -u)" != 0 || \
		{ apt-get update && apt-get install --yes --no-install-recommends chromium; } > /dev/null 2>&1 || \
		echo "no Chromium can be installed here: pages are not tested in a browser"
	@touch $@

$(VENV)/.job: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[job]'
	@touch $@ $(VENV)/.runtime
