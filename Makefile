# Chores. `make` lists them. Everything is set up in .venv and .tools; outside this folder pip and uv keep their caches, and `tools`, which
# tests and benchmarks need, installs packages where it runs as root on a system with apt: see .ci/tools.
PYTHON ?= python3
UV_VERSION := 0.13.7
BIN := .venv/bin
UV := .tools/uv/bin/uv
DATA_DIR ?= .lattice
FUZZ_SECONDS ?= 600
FUZZ_REQUESTS ?= 20000
CHAOS_SECONDS ?= 1200
CHAOS_SEED ?= 1
export PATH := $(CURDIR)/.tools/etcd/usr/bin:$(PATH)
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install up run test check prove bench bench-scheduling bench-openb bench-fleet bench-control bench-page docs screenshots wheel contract e2e fuzz chaos clean

help:  ## list the chores
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

install: .venv/.ready  ## set up what running needs

up: .venv/.ready  ## set up and run Lattice here; a new state begins with examples/quickstart
	@$(BIN)/lattice up --data-dir $(DATA_DIR) --seed examples/quickstart

run: up  ## the same as up

test: .venv/.ready-dev tools  ## set up and run the tests
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "not prove"

check: .venv/.ready-dev  ## format, lint, types, words, commit subjects, import rules, sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m lint.language
	$(BIN)/python -m lint.prose
	$(BIN)/python -m lint.commits
	$(BIN)/python -m pytest -q tests/test_architecture.py

prove: .venv/.ready-dev tools  ## the long proofs: kills, power cuts, 30,000-operation contract, every kubectl, mutations, planted bugs, 10,000 examples a property
	LATTICE_ALL_KUBECTLS=1 $(BIN)/python -m pytest -m prove -n 2 --dist loadgroup -rP --timeout 3000
	LATTICE_LONG=1 $(BIN)/python -m pytest -m "not prove" -n 2 --timeout 3000 tests/engine tests/lifecycle tests/scheduling tests/placement tests/controllers/services tests/controllers/garbage/test_ownership_graphs.py tests/controllers/scheduler/test_rival_schedulers.py tests/sim/test_sim_seeds.py

contract: .venv/.ready-dev tools  ## the store contract only
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not prove" tests/contract

SEEDS ?= 500
WORKERS ?= 2
sim: .venv/.ready-dev  ## the whole control plane under faults drawn from SEEDS (500) seeds, WORKERS (2) at once, and the scenarios; REWRITE=1 writes these anew
	$(BIN)/python -m pytest -q tests/sim/test_scenarios.py
	$(BIN)/lattice sim run --seeds $(SEEDS) --workers $(WORKERS)

e2e: .venv/.ready-dev tools  ## real servers, kubectl and foreign clients only
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not prove" tests/e2e

bench: .venv/.ready-dev tools  ## measure speed and memory; prints a table and stores it in bench/results
	PYTHONPATH=tests $(BIN)/python -m bench

bench-scheduling: .venv/.ready-dev  ## measure decisions a second, every placement verified; table in bench/results
	$(BIN)/python -m bench.scheduling

bench-fleet: .venv/.ready-dev  ## cost of fleet plans beside an independent optimum, and speed of placing
	$(BIN)/python -m bench.fleet

bench-control: .venv/.ready-dev tools  ## cost of the control plane at rest with 1,000 agents, and how soon work is placed, durably
	PYTHONPATH=tests $(BIN)/python -m bench.control

bench-page: .venv/.ready-dev tools  ## how soon the page is there, and whether it stays smooth with 10,000 workloads on 1,000 nodes
	PYTHONPATH=tests $(BIN)/python -m bench.page

bench-openb: .venv/.ready-dev  ## fill a GPU cluster from a public trace, beside published heuristics
	$(BIN)/python -m bench.openb

fuzz: .tools/fuzz/.ready  ## FUZZ_REQUESTS (20000) made-up API requests, and each parser for FUZZ_SECONDS (600), guided by what it reaches
	.tools/fuzz/bin/python tests/fuzz/api.py --requests $(FUZZ_REQUESTS)
	.tools/fuzz/bin/python tests/fuzz/guided.py --all --seconds $(FUZZ_SECONDS)

chaos: .venv/.ready-dev tools  ## real processes in network namespaces under faults by CHAOS_SEED (1) for CHAOS_SECONDS (1200); needs root
	$(BIN)/python -m chaos --seconds $(CHAOS_SECONDS) --seed $(CHAOS_SEED)

docs: .venv/.ready  ## write docs/reference and the pictures anew from the code, and the site into site/
	$(BIN)/python -m docs.build
	$(BIN)/python -m docs.pictures
	$(BIN)/python -m docs.site

screenshots: .venv/.ready-dev tools  ## every view of the page at both widths, into docs/images
	PYTHONPATH=tests $(BIN)/python tests/ui/screenshots.py

wheel: $(UV)  ## build dist/*.whl, with the page and the quickstart in it
	rm -f dist/*.whl
	$(UV) build -q --wheel --python $(PYTHON) --out-dir dist
	@ls dist/*.whl

clean:  ## remove what was set up here (not the state in .lattice)
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Lattice needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv .tools/uv
	.tools/uv/bin/python -m pip install -q uv==$(UV_VERSION)

.venv/.ready: $(UV) pyproject.toml uv.lock
	$(UV) sync -q --frozen --no-dev --inexact --compile-bytecode --python $(PYTHON)
	@$(BIN)/python -m compileall -q src
	@touch $@

.venv/.ready-dev: $(UV) pyproject.toml uv.lock
	$(UV) sync -q --frozen --compile-bytecode --python $(PYTHON)
	@$(BIN)/python -m compileall -q src
	@touch .venv/.ready $@

.tools/fuzz/.ready: $(UV) pyproject.toml uv.lock
	UV_PROJECT_ENVIRONMENT=.tools/fuzz $(UV) sync -q --frozen --no-dev --group fuzz --python $(PYTHON)
	@touch $@

.PHONY: tools
tools:
	@bash .ci/tools
