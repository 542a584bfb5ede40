# make train [ARGS="RECIPE --field value"]   train (the default recipe, unless ARGS names another)
# make test  [ARGS="-k replay"]              the tests
# make coverage                              the same with coverage, 88 % at least; takes half as long again
# make kernels                               the GPU kernels, on CPU cores: compiled for two GPUs, and tested in Triton's interpreter
# make play  [ARGS="runs/RUN"]               drive a walking robot, or the policy of a run, in the browser
# make check                                 lint, format, types, import layering, spelling
# make docs                                  the documentation as a site, in build/site; a dead link or a missing page fails
# make package                               the wheel and the source archive, in dist/, checked, and tried outside of the clone
# make bench [ARGS="env replay peers"]       measurements, each with its defaults, written to benchmarks/results/
# make humanoid-bench                        HumanoidBench, from its repository, into the virtual environment
# make clean | distclean                     remove caches | and the virtual environment; runs/ stays
#
# The first call makes .venv and installs the versions in constraints.txt; later calls do so only when that file or
# pyproject.toml has changed. PYTHON=/path/to/python chooses the interpreter, and PYTHONS="..." those that try the wheel.

.PHONY: train test kernels coverage play check docs package bench humanoid-bench clean distclean
.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
# More than two cores can feed: tests on Ray, and those with processes of their own, mostly wait.
WORKERS ?= 4

# An interrupted `venv` leaves a folder in which pip does not answer. It goes before anything in it counts as made.
$(shell [ ! -d $(VENV) ] || { $(BIN)/python -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)' \
	&& $(BIN)/python -m pip --version; } >/dev/null 2>&1 || rm -rf $(VENV))

.PHONY: help
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

train: $(VENV)/.installed
	$(BIN)/fleetfoot train $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

# Triton is 1 GB, and torch behaves differently where it is installed, so it stays outside of the environment.
TRITON := build/triton-3.9.0
kernels: $(VENV)/.installed-dev
	[ -d $(TRITON) ] || $(PIP) --no-deps --target $(TRITON) triton==3.9.0 || { rm -rf $(TRITON); exit 1; }
	PYTHONPATH=$(TRITON) $(BIN)/python -c 'import triton'
	PYTHONPATH=$(TRITON) $(BIN)/python -m pytest tests/ops/test_triton.py tests/ops/test_triton_compiles.py $(ARGS)

coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --cov=fleetfoot --cov-report=term $(ARGS)

play: $(VENV)/.installed-play
	$(BIN)/fleetfoot play $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python docs/site/check.py build/site

package: $(VENV)/.installed-dev
	rm -rf dist build/lib build/bdist.*
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	bash .ci/try-wheel $(PYTHONS)

bench: $(VENV)/.installed-dev
	set -e; for name in $(or $(ARGS),env replay peers); do $(BIN)/python -m benchmarks $$name; done

# The package asks models for fields that MuJoCo no longer has; one line of it is changed. Its own pins are of 2024.
HUMANOID_BENCH := $(VENV)/humanoid-bench
humanoid-bench: $(VENV)/.installed
	[ -d $(HUMANOID_BENCH) ] || git clone https://github.com/carlosferrazza/humanoid-bench $(HUMANOID_BENCH)
	sed -i.bak 's/= getattr(struct, field_name)$$/= getattr(struct, field_name, None)/' $(HUMANOID_BENCH)/humanoid_bench/dmc_deps/dmc_index.py
	$(PIP) --no-deps -e $(HUMANOID_BENCH)
	$(PIP) dm-control==1.0.50

# torch goes first and alone: resolved together with packages that ask for it, pip may prefer a build with several GiB
# of CUDA libraries to the one that the machine's index offers for its hardware.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.whole
	@echo "Installing the pinned dependencies into $(VENV) (a few minutes the first time) ..."
	$(PIP) torch
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/.whole
	@echo "Installing the pinned dependencies into $(VENV) (a few minutes the first time) ..."
	$(PIP) torch
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-play

$(VENV)/.installed-play: pyproject.toml constraints.txt | $(VENV)/.whole
	@echo "Installing the pinned dependencies into $(VENV) (a few minutes the first time) ..."
	$(PIP) torch
	$(PIP) -e '.[play,export]'
	@touch $@ $(VENV)/.installed

$(VENV)/.whole:
	@if [ ! -d $(VENV) ]; then \
		found=; bare=; \
		for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
			$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1 || continue; \
			if $$python -c 'import venv, ensurepip' >/dev/null 2>&1; then found=$$python; break; fi; \
			bare=$$python; \
		done; \
		if [ -n "$$found" ]; then \
			echo "Making $(VENV) with $$($$found --version) ..."; \
			$$found -m venv $(VENV) || exit 1; \
		elif [ -n "$$bare" ]; then \
			echo "make: $$bare cannot make virtual environments; install python3-venv (apt-get install python3-venv)." >&2; exit 1; \
		else \
			echo "make: no Python 3.11, 3.12 or 3.13 found; install one, or say PYTHON=/path/to/python." >&2; exit 1; \
		fi; \
	fi
	@touch $@

clean:
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* build dist
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -rf src/*.egg-info MUJOCO_LOG.TXT

distclean: clean
	rm -rf $(VENV)
