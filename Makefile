# Every target sets up what it needs by itself; on a fresh clone `make test` and `make demo` are all you need.
.DEFAULT_GOAL := help
.PHONY: help setup check test interop soak coverage bench simulate fuzz demo demo-link docs dist release lock clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SEEDS ?= 2000
CHAOS_SEEDS ?= 5
TESTS ?=
SECONDS ?= 3600
SEED ?= 1

# Compiled once, and not by each of the hundreds of processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY) ## Create .venv with everything that check and test need

$(READY): pyproject.toml requirements.lock scripts/setup
	@scripts/setup $(VENV)
	@touch $(READY)

check: $(READY) ## Format, lint, types, dependency directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(READY) $(VENV)/.tests-compiled ## The whole suite, in random order, on five processes: what waits for clusters leaves the two cores to others
	$(BIN)/python -m pytest -n 5 $(TESTS)

# Every process of pytest collects all tests: without this each would compile all of them by itself.
$(VENV)/.tests-compiled: $(READY) $(shell find src tests -name '*.py')
	@$(BIN)/python -m compileall -q -j 0 src
	@for part in tests/unit "tests/scenarios tests/simulation"; do \
		$(BIN)/python -m pytest --collect-only -qq $$part >/dev/null & \
	done; wait
	@touch $@

interop: $(READY) ## Tests against Apache Kafka, Apache ZooKeeper, Java clients, kcat (fetched by name)
	$(BIN)/python -m pytest -p no:randomly $(if $(findstring tests/,$(TESTS)),,tests/interop) $(TESTS)

soak: $(READY) ## Tests that take minutes: pipelines and the exactly-once chain under kills, brokers under chaos (CHAOS_SEEDS=5), everything at once
	$(BIN)/python -m pytest -m soak -p no:randomly $(TESTS)
	$(BIN)/python -m tests.soak.chaos --seconds 100 --seeds $(CHAOS_SEEDS)
	$(BIN)/python -m tests.soak.rooms --seed 7

coverage: $(READY) ## Which lines the fast tests reach: a table here, pages in htmlcov/. Shown, not a gate
	rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run -m pytest -p no:randomly --timeout 600 $(if $(findstring tests/,$(TESTS)),,tests/unit tests/scenarios/registry) $(TESTS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage html --quiet
	$(BIN)/python -m coverage report --skip-covered --sort=cover | tail -60

simulate: $(READY) ## Seeded simulation of whole clusters: make simulate SEEDS=10000
	SEEDS=$(SEEDS) $(BIN)/python -m pytest -n $$(nproc) tests/simulation --timeout 0

fuzz: $(READY) ## Hostile inputs at a broker, ZooKeeper, the registry, the HTTP layer, and values at decoders: make fuzz SECONDS=3600 SEED=7
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.servers --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.tier --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.link --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.registry --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.heads --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.values --seconds $(SECONDS) --seed $(SEED)

bench: $(READY) ## Benchmarks beside Apache Kafka and Apache ZooKeeper, results in bench/results/
	$(BIN)/python -m bench

demo: $(READY) ## Three brokers, a stream, a leader that dies; make demo KEEP=1 stays up
	$(BIN)/python examples/demo/run.py $(if $(KEEP),--keep)

demo-link: $(READY) ## A Kafka cluster in KRaft mode moves in while a producer and a consumer run; needs mvn and java
	$(BIN)/python examples/link/run.py

docs: $(VENV)/.ready-docs ## The documentation as a site, in site/; links and anchors are checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python scripts/check_site.py site

$(VENV)/.ready-docs: $(READY)
	@scripts/setup $(VENV) docs
	@touch $@

dist: $(VENV)/.ready-release ## Source archive and wheel in dist/, checked: twine, an empty environment on every Python that is here
	scripts/dist $(BIN)

release: $(VENV)/.ready-release ## Version, changelog, packages, site, image: make release VERSION=0.2.0. Stops before anything leaves this machine
	$(BIN)/python scripts/release.py $(VERSION)

$(VENV)/.ready-release: $(READY)
	@scripts/setup $(VENV) release
	@touch $@

lock: $(READY) ## Refresh requirements.lock
	@command -v uv >/dev/null || $(BIN)/python -m pip install --quiet uv
	PATH="$$PATH:$(BIN)" uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-emit-index-url --no-header pyproject.toml -o requirements.lock

clean: ## Remove everything that make made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .interop dist build site htmlcov .coverage
