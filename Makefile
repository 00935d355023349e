# `make run` starts the product, `make test` tests it. `make help` lists all other commands.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-to-run
DATA ?= var
SEEDS ?= 300
UPGRADE ?= --upgrade
SDK := onewriter onewriter.sync onewriter.testing

# Tests start brokers by the thousand; what Python compiled of the sources is kept between them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-rest test-all mutants requirements check model sim standstill soak soak-pipeline soak-operator bench bench-sdk bench-pipeline bench-operator bench-scale simulate-scale compare-pulsar examples pipeline-demo trust store-cluster e2e kind image spark-image chart transition-table reference docs docs-serve clean help

help:  ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "onewriter needs Python 3.11 or later (set PYTHON=)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# pip checks the hash of every file that it installs (requirements/README.md). Build backends come from the same
# lists, so nothing is built in an environment that pip fills by itself.
PIP_INSTALL := $(BIN)/pip --disable-pip-version-check install --quiet
HASHED := $(PIP_INSTALL) --no-build-isolation --require-hashes
OWN := $(PIP_INSTALL) --no-build-isolation --no-deps --editable .

# Spark and the test tools are large, so make run installs neither.
$(RUN_STAMP): pyproject.toml requirements/run.txt requirements/build.txt | $(BIN)/python
	@echo "== installing onewriter into $(VENV), once"
	@$(HASHED) --requirement requirements/build.txt --requirement requirements/run.txt
	@$(OWN)
	@touch $@

$(STAMP): pyproject.toml requirements/test.txt requirements/build.txt | $(BIN)/python
	@echo "== installing the test tools and Spark into $(VENV): about two minutes, once"
	@$(HASHED) --requirement requirements/build.txt
	@$(HASHED) --requirement requirements/test.txt
	@$(OWN)
	@touch $(RUN_STAMP) $@

run: $(RUN_STAMP)  ## Start Valkey and a broker on this machine and apply examples/*.yaml
	$(BIN)/onewriter up --data-dir $(DATA) -f examples

test: $(STAMP)  ## The tests that need Python alone, about 10 minutes (TIERS=core,spark runs a part)
	@$(BIN)/python tests/run.py

test-rest: $(STAMP)  ## The tests that make test leaves out: clusters, nodes, e2e, other stores, Java clients
	@$(BIN)/python tests/run.py --rest

test-all: $(STAMP)  ## make test and make test-rest in one run
	@$(BIN)/python tests/run.py --all

mutants: $(STAMP)  ## Plant bugs one at a time and see whether the tests catch them (ONLY=S4 for some)
	$(BIN)/python -m tests.mutants.campaign $(foreach word,$(ONLY),--only $(word))

check: $(STAMP)  ## Formatting, lint, phrases of the style guide, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tests.prose
	$(BIN)/mypy
	$(BIN)/lint-imports

model: $(STAMP)  ## The model checker with the larger scopes
	ONEWRITER_MODEL=large $(BIN)/pytest tests/model --timeout 3600

sim: $(STAMP)  ## The simulation over SEEDS seeds (make sim SEEDS=1000)
	ONEWRITER_SEEDS=$(SEEDS) $(BIN)/pytest tests/simulation --timeout 7200

standstill: $(STAMP)  ## Unit tests on a machine that stands still once in each, over SEEDS seeds
	for seed in $$(seq $(SEEDS)); do echo "seed $$seed"; \
		ONEWRITER_SEED=$$seed $(BIN)/pytest -q -n 2 -p tests.standstill tests/unit tests/property tests/scenarios || exit 1; done

worst-inputs: $(STAMP)  ## Search for the wire inputs that hold a broker's event loop longest
	$(BIN)/python -m bench.worst_inputs

soak: $(STAMP)  ## Campaigns at full length: hundreds of failovers and kills, 300,000 hostile inputs
	ONEWRITER_ROUNDS=200 $(BIN)/pytest tests/integration -m campaign --timeout 7200
	$(BIN)/python -m tests.attacks.fuzzing.campaign

soak-pipeline: $(STAMP)  ## 100 kills of executors, drivers and brokers while a stream is written
	ONEWRITER_ROUNDS=100 $(BIN)/pytest tests/spark -m campaign --timeout 7200

soak-operator: $(STAMP)  ## Brokers replaced twenty times in a row under writers, on the lab (root)
	$(BIN)/python -m e2e.images
	ONEWRITER_ROLLOUTS=20 $(BIN)/pytest e2e/test_upgrades.py -k replacing_the_brokers --timeout 7200

examples: $(STAMP)  ## Every worked example against a broker of its own, each checks its own claim
	$(BIN)/python examples/run.py

pipeline-demo: $(STAMP)  ## A tour of the pipeline on generated takeovers, into $(DATA)/pipeline-demo
	$(BIN)/python examples/pipeline_demo.py --to $(DATA)/pipeline-demo

bench: $(STAMP)  ## Benchmarks, side by side with Pulsar, into docs/benchmarks.md
	$(BIN)/python -m bench.run

bench-sdk: $(STAMP)  ## The SDK beside the stock client, handover, shared maps, into the same page
	$(BIN)/python -m bench.sdk_run

bench-pipeline: $(STAMP)  ## The pipeline on Spark (Java 17): source, offload, audit, sink, memory, into the same page
	$(BIN)/python -m bench.pipeline_run

bench-operator: $(STAMP)  ## The operator at scale, takeover through pods (root), into the same page
	$(BIN)/python -m bench.operator_run

bench-scale: $(STAMP)  ## CPU per message with several shards; thousands of topics; into the same page
	$(BIN)/python -m bench.scale_run

simulate-scale: $(STAMP)  ## 1,000 brokers and 10,000 buckets on a virtual clock: load, placement, storms of failures
	$(BIN)/python -m bench.scale_simulation

compare-pulsar: $(STAMP)  ## The same scenarios on Pulsar and here, into docs/comparison.md
	$(BIN)/python -m bench.compare

trust: $(STAMP)  ## Faults on the nodes of make e2e: outages at the writers beside those reported, into docs/failures.md
	$(BIN)/python -m e2e.trust

store-cluster: $(STAMP)  ## The store as a Valkey Cluster on three nodes of make e2e: lost processes, pods, volumes, a node
	$(BIN)/python -m e2e.images
	$(BIN)/pytest e2e/store_cluster.py --timeout 900

e2e: $(STAMP)  ## The whole product on two nodes, or on KUBECONFIG's cluster (USE_EXISTING_CLUSTER=true)
	$(BIN)/python tests/run.py e2e

kind: $(STAMP)  ## A cluster of kind with the images loaded, for make e2e (needs Docker)
	$(BIN)/python -m e2e.kind

image: $(STAMP)  ## The container image as dist/onewriter-image.tar, with Docker or without
	$(BIN)/python -m tests.cluster.images

spark-image: $(STAMP)  ## The image of the pipeline's jobs as dist/onewriter-spark-image.tar, likewise
	$(BIN)/python -m tests.cluster.images onewriter-spark

chart: $(STAMP)  ## Write what of the chart follows from models
	$(BIN)/python -m charts.generator

transition-table: $(STAMP)  ## Write the transition table of the topic machine into ARCHITECTURE.md
	$(BIN)/python -m docs.generator.transition_table

reference: $(STAMP)  ## The SDK's API reference as HTML, into dist/reference
	$(BIN)/pdoc $(SDK) --template-directory docs/generator/pdoc --output-directory dist/reference

docs: $(STAMP)  ## The documentation site, into dist/site; broken links are errors
	$(BIN)/python -m docs.generator
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/pdoc $(SDK) --template-directory docs/generator/pdoc --output-directory dist/site/reference/sdk

docs-serve: $(STAMP)  ## The documentation site on http://127.0.0.1:8000, rebuilt after each change
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

requirements: | $(BIN)/python  ## Write the hashed requirements with the newest versions (UPGRADE= keeps the versions)
	$(PIP_INSTALL) uv
	UV=$(BIN)/uv requirements/compile.sh $(UPGRADE)

clean:  ## Remove the virtual environment and caches (never the data)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build/test-logs
