# Two commands on a fresh machine with Python 3.11 or later: make run, make test. `make` alone lists the rest.
# Each check is a target of its own, so make's last line names the step that failed.
PYTHON ?= python3
VENV ?= .venv
PY = $(VENV)/bin/python
CHECKED = $(wildcard gym_capture tests benchmarks)
# ARGS go to what a target runs: make run ARGS=collect.workers=2, make pytest ARGS='-k fencing'
ARGS ?=
# So many processes share the tests. One more than there are cores: some of a test is waiting. make pytest ARGS='-n 0 --pdb' is one.
WORKERS ?= 3

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help environment run test lint format-check types imports wheel pytest conformance damage limits format bench simulate \
	crash soak lock clean distclean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1|/p' Makefile | awk -F'|' '{printf "  make %-13s %s\n", $$1, $$2}'
	@echo "  PYTHON=python3.12 chooses the interpreter, ARGS=... is handed on to run, pytest, bench, simulate, crash and soak."

environment: ## make .venv from requirements.lock, or bring it up to date
	@sh tools/environment.sh "$(VENV)" "$(PYTHON)"

run: environment ## run configs/local.yaml: an embedded Ray, a model server, a proxy, an agent, a summary
	@$(PY) -m gym_capture.examples.local_run configs/local.yaml $(ARGS)

test: lint format-check types imports wheel pytest ## every check, then the tests

lint: environment ## ruff's rules
	@echo "== lint"
	@$(PY) -m ruff check --output-format concise .

format-check: environment ## is everything formatted? (make format does it)
	@echo "== format-check"
	@$(PY) -m ruff format --check --output-format concise . || { echo "make format mends it"; exit 1; }

types: environment ## mypy, strict, over package, tests and benchmarks
	@echo "== types"
	@$(PY) -m mypy $(CHECKED)

imports: environment ## import-linter: dependencies point one way
	@echo "== imports"
	@$(VENV)/bin/lint-imports --no-logo

wheel: environment ## build the wheel, install it apart from this checkout, try it
	@echo "== wheel"
	@$(PY) -m tests.packaging.wheel_smoke

pytest: environment ## the tests alone
	@echo "== pytest"
	@$(PY) -m compileall -q gym_capture tests # for the hundreds of processes that tests start, where Python may keep no bytecode
	@$(PY) -m pytest -n $(WORKERS) $(ARGS)

conformance: environment ## the transports' suite on real actors in all configurations, not the half (about 2 minutes)
	@GYM_CAPTURE_EXHAUSTIVE=1 $(PY) -m pytest tests/actor/test_ray_conformance.py $(ARGS)

damage: environment ## every case of damage to a directory's bytes, not a sample (about 15 minutes)
	@GYM_CAPTURE_EXHAUSTIVE=1 $(PY) -m pytest --timeout 3600 tests/storage/test_damage_corpus.py tests/storage/test_repair.py $(ARGS)

limits: environment ## memory and time at the limits, at full size, with printed figures
	@$(PY) -m tests.limits $(ARGS)

format: environment ## format, and mend what ruff can mend
	@$(PY) -m ruff check --fix --exit-zero --quiet .
	@$(PY) -m ruff format .

bench: environment ## the benchmark, against a plain file store
	@$(PY) -m benchmarks $(ARGS)

simulate: environment ## 100,000 seeded schedules of the whole cluster (one to two hours on 2 cores)
	@$(PY) -m tests.simulation $(ARGS)

crash: environment ## 200 seeded faults under load on a real Ray cluster of several nodes (an hour and more on 2 cores)
	@$(PY) -m tests.crash.lab $(ARGS)

soak: environment ## 30 minutes of load on one directory, one fault after the other; counts equal and memory flat in the end
	@$(PY) -m tests.crash.lab.soak $(ARGS)

lock: ## resolve pyproject.toml anew into requirements.lock (needs the network)
	@$(PYTHON) -m venv --clear build/lock
	@build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --upgrade $(ARGS) \
		pyproject.toml --output-file build/lock/requirements
	@{ echo "# Made from pyproject.toml by 'make lock', for Python 3.11 and later. Not edited by hand."; \
		cat build/lock/requirements; } > requirements.lock

clean: ## remove what builds, tests and checks leave (not .venv, not runs/)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find gym_capture tests $(wildcard benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove the environment
	@rm -rf "$(VENV)"
