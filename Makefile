# Every command a person needs; `make` alone lists them. Only Python 3.11, Go, git and make are expected
# on the machine: dev/bootstrap.py fetches uv, uv fetches the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

export PYTHONPATH := dev
# Some environments forbid it; without, every process compiles all that it imports, seconds each time.
unexport PYTHONDONTWRITEBYTECODE
NODES ?= 20
MINUTES ?= 1
VERSIONS ?= 3.11 3.12 3.13 3.14
BENCH ?=
PYTEST_ARGS ?=
# Integration tests wait more than they work: two control planes side by side, a file of tests on one of them.
# In order: an operator that a folder shares watches all namespaces, and must not outlast its folder.
WORKERS ?= 2
# What speaks to sockets of its own and needs no control plane: integration, but for every Python too.
LOOPBACK := tests/integration/aws tests/integration/kube tests/integration/obs tests/integration/s3refresh/test_http_target.py

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/caretaker
UV := $(or $(shell command -v uv 2>/dev/null),$(CACHE)/uv/bin/uv)
PYTHON := .venv/bin/python

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what the other commands need, into .venv and the user's cache
	@command -v python3 >/dev/null || { echo "python3 is missing: apt-get install python3" >&2; exit 1; }
	@python3 dev/bootstrap.py "$(CACHE)/uv"
	@$(UV) sync --frozen --quiet

.PHONY: lint
lint: setup ## style, types and layers
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports

.PHONY: unit
unit: setup ## the unit tests: no I/O, seconds
	$(PYTHON) -m pytest -n logical tests/unit tests/test_architecture.py $(PYTEST_ARGS)

.PHONY: matrix
matrix: setup ## unit and loopback tests on every Python that is supported; VERSIONS="3.12 3.13" for some
	@failed=""; \
	for version in $(VERSIONS); do \
	  echo "== Python $$version"; \
	  if ! $(UV) python find --no-project $$version >/dev/null 2>&1 && ! $(UV) python install $$version; then \
	    echo "MISSING: no Python $$version on the PATH, and uv cannot fetch it" >&2; \
	    failed="$$failed $$version (missing)"; \
	    continue; \
	  fi; \
	  $(UV) run --python $$version --isolated --frozen --quiet \
	    python -m pytest tests/unit tests/test_architecture.py $(LOOPBACK) -q $(PYTEST_ARGS) \
	    || failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "NOT GREEN:$$failed" >&2; exit 1; fi

.PHONY: program
program: setup
	@$(PYTHON) -m testbed build

.PHONY: doubles
doubles: setup
	@$(PYTHON) -m awsdoubles fetch

.PHONY: integration
integration: program doubles ## the tests against a real control plane
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests/integration tests/e2e $(PYTEST_ARGS)

.PHONY: test
test: lint unit integration ## everything: lint, unit, integration and e2e tests

.PHONY: soak
soak: program doubles ## the random soak tests alone, for MINUTES=1
	SOAK_MINUTES=$(MINUTES) $(PYTHON) -m pytest tests -m soak --timeout=0 -s $(PYTEST_ARGS)

.PHONY: demo
demo: program ## see it work on 20 fake nodes, in a minute; KEEP=1 leaves it up, CLUSTER=kind uses kind
	@$(PYTHON) -m testbed.demo

.PHONY: demo-down
demo-down: setup ## stop what `make demo KEEP=1` left up
	@$(PYTHON) -m testbed.demo down

.PHONY: bench
bench: program ## measure side by side; BENCH=name for one
	@$(PYTHON) -m bench $(BENCH)

.PHONY: cluster
cluster: program ## start a control plane with NODES=20 fake nodes in the background
	@$(PYTHON) -m testbed up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: setup ## stop it
	@$(PYTHON) -m testbed down

.PHONY: aws
aws: setup ## start doubles of S3, SQS, SNS, EventBridge and Storage Gateway; `source .dev/aws.env` uses them
	@$(PYTHON) -m awsdoubles up

.PHONY: aws-down
aws-down: setup ## stop them
	@$(PYTHON) -m awsdoubles down

.PHONY: clean
clean: cluster-down demo-down aws-down ## stop the cluster; remove .dev, .venv and every tool's cache in the checkout
	rm -rf .dev .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find operator dev tests -name __pycache__ -prune -exec rm -rf {} +
