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
MODEL_PERCENT ?= 100
# Of `make matrix`: SUITE=unit for the unit tests and simulations alone, SUITE=all for all that a control plane is for.
ROWS ?=
SUITE ?=
# Of `make mutants`: which modules of which kind, such as MODULES="plan ecs.plan"; FRESH=1 tries the killed, too.
KIND ?= daemontask
MODULES ?=
FRESH ?=
# Of `make stress`.
TEST ?=
TIMES ?= 50
LOAD ?= 2
LAG ?= 0
# Of `make fuzz`.
SUBJECTS ?=
# Of `make release`: where it will be found, what its images are built on (published, debian, none), and who
# builds it, as an URI.
VERSION ?=
REPOSITORY ?= https://example.com/caretaker
REGISTRY ?= registry.example.com/caretaker
IMAGES ?= published
BUILDER ?=
# Of `make release-check`: what it wrote, and the dist/ of the release before.
DIST ?= dist
PREVIOUS ?=
# Which control plane is built and started, such as 1.34; by default the newest one that is known.
export KUBERNETES
# Folders of programs that are there, as in PATH, of which it is made then. A real node and rows of other versions
# need more than these.
e2e-kind release-check node matrix arm64: override export CONTROLPLANE :=
BENCH ?=
PYTEST_ARGS ?=
# Of `make integration`; the same tests take longer in `make slow`.
SOAK_MINUTES ?= 0.15
HOPLAB_ARGS ?=
# Integration tests wait more than they compute: several control planes side by side, a file of tests on each. More
# than six take longer on two cores, and one takes 2 GiB of memory with what runs beside it.
WORKERS ?= $(shell awk '/^MemTotal/ {n = int($$2 / 2097152); print (n < 2 ? 2 : (n > 6 ? 6 : n))}' /proc/meminfo 2>/dev/null || echo 6)

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/caretaker
UV := $(or $(shell command -v uv 2>/dev/null),$(CACHE)/uv/bin/uv)
PYTHON := .venv/bin/python

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what the other commands need, into .venv and the user's cache
	@command -v python3 >/dev/null || { echo "python3 is missing: apt-get install python3" >&2; exit 1; }
	@test -x $(PYTHON) || echo "installing uv and the Python packages (once, a minute at most)"
	@python3 dev/bootstrap.py "$(CACHE)/uv"
	@$(UV) sync --frozen --quiet

.PHONY: lint
lint: setup ## style, types, layers and workflows
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports
	actionlint=$$($(PYTHON) -m gotools actionlint) && "$$actionlint" -shellcheck= -pyflakes= .github/workflows/*

.PHONY: unit
unit: setup ## the unit tests: no servers, a quarter of a minute
	$(PYTHON) -m pytest -m "not slow" $(or $(PYTEST_ARGS),--fork) tests/unit tests/test_*.py

.PHONY: simulation
simulation: setup ## decisions over time: whole controllers in simulated clusters
	$(PYTHON) -m pytest -m "not slow" $(or $(PYTEST_ARGS),--fork) tests/simulation

.PHONY: models
models: setup ## the random models of stores and kinds and all else that is random, in full (`make test` tries a few); MODEL_PERCENT=100, MODEL_SEED=7 for others than those of every run
	MODEL_PERCENT=$(MODEL_PERCENT) $(PYTHON) -m pytest -n logical --dist worksteal -m "hypothesis or random" tests/unit tests/simulation $(PYTEST_ARGS)

.PHONY: mutants
mutants: setup ## hours: what the tests without servers notice of small changes of the pure modules; KIND=daemontask MODULES="plan node"
	@UV_PROJECT_ENVIRONMENT="$(CURDIR)/.dev/mutants/venv" $(UV) sync --frozen --quiet --group mutants --no-install-project
	@$(PYTHON) -m mutants "$(KIND)" $(MODULES) $(if $(FRESH),--fresh)

.PHONY: fuzz
fuzz: setup ## every decoder and planner with the largest inputs, then at random for MINUTES=1; SUBJECTS="s3-message redact" for some
	PYTHONPATH=operator:dev $(PYTHON) -m fuzz "$(MINUTES)" $(SUBJECTS)

.PHONY: stress
stress: program doubles gotools ## repeat tests beside busy processes until one fails: TEST=tests/unit/kube or TEST="a word", TIMES=50 LOAD=2; LAG=0.7 for operators that are behind
	@$(PYTHON) -m stress "$(TEST)" --times $(TIMES) --load $(LOAD) --lag $(LAG)

.PHONY: docs
docs: setup ## the site of docs/, with a reference of every field; fails at a link or an anchor that leads nowhere
	@UV_PROJECT_ENVIRONMENT="$(CURDIR)/.dev/docs/venv" $(UV) sync --frozen --quiet --only-group docs
	@NO_MKDOCS_2_WARNING=1 .dev/docs/venv/bin/mkdocs build --strict
	@echo "built: .dev/docs/site/index.html; with search: python3 -m http.server --bind 127.0.0.1 --directory .dev/docs/site"

.PHONY: audit
audit: setup ## lock, hashes and licences of what is shipped, and where to ask for known vulnerabilities; offline
	$(UV) lock --check --offline
	$(PYTHON) -m pytest -q tests/test_supply_chain.py
	@echo "NOT ASKED: known vulnerabilities, which takes a service (osv.dev). Where it can be reached:"
	@echo "  uv export --frozen --no-dev --no-emit-project | uvx pip-audit --require-hashes -r /dev/stdin"

.PHONY: release
release: setup ## write dist/, all files of a release of this commit: VERSION=0.1.0 REPOSITORY=https://... REGISTRY=ghcr.io/...
	@$(PYTHON) -m release "$(VERSION)" --repository "$(REPOSITORY)" --registry "$(REGISTRY)" --images "$(IMAGES)" --builder "$(BUILDER)"

.PHONY: release-check
release-check: setup ## what `make release` wrote, from a registry into kind: verify, install, test, upgrade, roll back, uninstall; PREVIOUS=folder of an older dist
	@$(PYTHON) -m release.check "$(DIST)" --previous "$(PREVIOUS)"
	@$(MAKE) --no-print-directory CONTROLPLANE= program doubles gotools
	@RELEASE_DIST="$(DIST)" PREVIOUS="$(PREVIOUS)" $(PYTHON) -m pytest tests/node/release -v --no-header -p no:cacheprovider $(PYTEST_ARGS)

.PHONY: matrix
matrix: setup ## the tests on every Python, dependency set and Kubernetes; ROWS="py3.12 lowest k8s1.34" for some
	@$(PYTHON) -m matrix $(ROWS) --suite "$(SUITE)" $(PYTEST_ARGS)

.PHONY: arm64
arm64: setup ## the unit tests, simulations and `caretaker run` on an arm64 Python, emulated on other machines
	@$(PYTHON) -m matrix arm64 --suite "$(SUITE)" $(PYTEST_ARGS)

.PHONY: lowest
lowest: setup
	@$(PYTHON) -m matrix lowest --suite unit $(PYTEST_ARGS)

.PHONY: program
program: setup
	@$(PYTHON) -m testbed build

.PHONY: doubles
doubles: setup
	@$(PYTHON) -m awsdoubles fetch
	@$(PYTHON) -m iamtools

.PHONY: gotools
gotools: setup
	@$(PYTHON) -m gotools >/dev/null

.PHONY: chart
chart: setup ## write what follows from others: the chart's CRDs and kinds, the table of its values, deploy/, lines in pyproject.toml
	@$(PYTHON) -m chart

# With less garbage collection an API server takes a sixth less CPU (28.5 -> 24 s for 208 tests); the limit is
# for their memory.
CLUSTERS = GOGC=400 GOMEMLIMIT=1GiB $(PYTHON) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 20

# Components that mostly wait take with one thread each a quarter less CPU (37 -> 28 ms a second for a
# control plane at rest).
.PHONY: integration
integration: program doubles gotools ## the tests against a real control plane, but for the slow ones
	GOMAXPROCS=1 SOAK_MINUTES=$(SOAK_MINUTES) $(CLUSTERS) -m "not slow" tests/e2e tests/integration $(PYTEST_ARGS)

.PHONY: slow
slow: program doubles gotools ## the tests that are not in `make test`: slow ones, tooling, recipes, other projects' tools
	@$(PYTHON) -m gotools cosign krew oras registry >/dev/null
	$(CLUSTERS) -m "slow and not random" tests/e2e tests/integration tests/simulation tests/unit tests/test_*.py $(PYTEST_ARGS)

.PHONY: e2e-kind
e2e-kind: program doubles gotools ## the operator in the image of our Dockerfile on real nodes: kind, with or without a container engine; needs root on Linux
	@$(PYTHON) -m realnode prepare
	$(PYTHON) -m pytest tests/node --durations 8 $(PYTEST_ARGS)

# By itself and last: it needs both cores. Where the machine cannot run it that is said, and only CI fails.
.PHONY: node
node: setup
	@if $(PYTHON) -m realnode check; then $(MAKE) --no-print-directory e2e-kind; else test -z "$${CI:-}"; fi

define timed
	@times=; for part in $(1); do \
	  began=$$(date +%s); $(MAKE) --no-print-directory $$part || exit; \
	  times="$$times$$(printf '%6d s  %s' $$(($$(date +%s) - began)) $$part)\n"; \
	done; printf "$$times"
endef

.PHONY: test
test: ## what every change needs: lint, unit tests, simulations, integration and e2e tests; prints the time of each part
	$(call timed,lint unit simulation integration)

.PHONY: test-all
test-all: ## all the rest: random models in full, oldest dependencies, tooling, docs, a real node where root may
	$(call timed,models lowest docs slow node)

.PHONY: soak
soak: program doubles ## the random soak tests alone, for MINUTES=1
	SOAK_MINUTES=$(MINUTES) $(PYTHON) -m pytest tests -m soak --timeout=0 -s $(PYTEST_ARGS)

.PHONY: demo
demo: program ## see it work on 20 fake nodes, in a minute and a half; KEEP=1 leaves it up, CLUSTER=kind uses kind
	@$(PYTHON) -m testbed.demo

.PHONY: demo-down
demo-down: setup ## stop what `make demo KEEP=1` left up
	@$(PYTHON) -m testbed.demo down

.PHONY: bench
bench: program ## measure side by side; BENCH=name for one
	@$(PYTHON) -m bench $(BENCH)

.PHONY: hoplab
hoplab: setup ## measure how SDKs fare behind EC2's metadata hop limit, in network namespaces; needs root
	@$(PYTHON) -m hoplab $(HOPLAB_ARGS)

.PHONY: cluster
cluster: program ## start a control plane with NODES=20 fake nodes in the background
	@$(PYTHON) -m testbed up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: setup ## stop it
	@$(PYTHON) -m testbed down

.PHONY: aws
aws: setup ## start doubles of S3, SQS, SNS, EventBridge, Storage Gateway, EC2, ECS; `source .dev/aws.env` uses them
	@$(PYTHON) -m awsdoubles up

.PHONY: aws-down
aws-down: setup ## stop them
	@$(PYTHON) -m awsdoubles down

.PHONY: clean
clean: cluster-down demo-down aws-down ## stop the cluster; remove .dev, .venv and every tool's cache in the checkout
	rm -rf .dev .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find operator dev tests -name __pycache__ -prune -exec rm -rf {} +
