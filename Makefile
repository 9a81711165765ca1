# Every recipe sets up what it needs on a fresh Debian or Ubuntu; CI calls nothing else.
#
#   make demo     a job that is killed half-way, resumed, and verified; under 2 minutes once built
#   make test     everything that CI checks
#   make help     the rest

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

export STREAMFORGE_CACHE ?= $(HOME)/.cache/streamforge
export PATH := $(PATH):$(HOME)/.cargo/bin

# CI clones afresh each time: keep what is compiled outside the clone.
ifneq ($(CI),)
export CARGO_TARGET_DIR ?= $(STREAMFORGE_CACHE)/target
endif
export CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TERM_COLOR ?= auto
export STREAMFORGE_BIN := $(CARGO_TARGET_DIR)/release/streamforge

TOOLS := $(STREAMFORGE_CACHE)/tools/bin
# One profile, so that DataFusion and Arrow are compiled once for everything.
# Always the whole workspace: with `--package` cargo picks other features for shared dependencies,
# and DataFusion is compiled again (8 minutes).
BUILD := cargo build --locked --release --workspace --bins
XTASK := $(CARGO_TARGET_DIR)/release/xtask
# $(call cargo_test,arguments): `package(x)` filters are nextest's; cargo test runs everything.
cargo_test = if [ -x $(TOOLS)/cargo-nextest ]; \
  then $(TOOLS)/cargo-nextest nextest run --locked --cargo-profile release --workspace $(1); \
  else cargo test --locked --release --workspace --no-fail-fast; fi

# Seeds of the simulation and of the property tests.
SEEDS ?= 1000
# Kills of the long ledger.
KILLS ?= 200
# Minutes for which many jobs are looked at while nothing happens.
IDLE ?= 10

# Runs a command while a real Kafka and a real S3 server run; those that KAFKA_BOOTSTRAP and S3_ENDPOINT
# name are used instead, and those that ran before are left alone.
WITH_SERVICES := e2e/services/with kafka s3 --

.PHONY: walks api-crashes api-faults images charts e2e e2e-slow jobs-1000 cluster-up cluster-down services services-down negative help setup build check fmt clippy tidy arrows generated generate deny alone test golden sim \
  process kills kills-kafka network plant plant-protocol fuzz-short flights demo demo-kafka bench bench-kafka bench-latency limits micro clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: ## install what is missing on this machine
	@scripts/setup tests

build: ## the binaries: target/release/streamforge and xtask
	@scripts/setup build
	$(BUILD)

check: ## format, lints, tidy, arrows, generated files
	@scripts/setup build
	cargo fmt --all --check
	cargo clippy --locked --release --workspace --all-targets --features streamforge-e2e-cluster/cluster -- -D warnings
	$(BUILD)
	$(XTASK) tidy
	$(XTASK) arrows
	$(XTASK) crdgen --check
	$(XTASK) docgen --check
	$(XTASK) chartgen --check

tidy arrows: build ## headers, lengths, links; who may import whom
	$(XTASK) $@

generate: build ## write crds/generated, the generated pages of docs/ and parts of charts/
	$(XTASK) crdgen
	$(XTASK) docgen
	$(XTASK) chartgen

deny: ## licences and sources of the dependencies (cargo-deny)
	@scripts/setup deny
	$(TOOLS)/cargo-deny --locked check bans licenses sources

alone: ## each crate builds without the features its neighbours switch on
	@scripts/setup build
	for p in $$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; [print(p["name"]) for p in json.load(sys.stdin)["packages"]]'); do \
	  echo "$$p"; cargo check --locked --quiet --release --package "$$p"; done

test: setup check build ## everything that CI checks, with a real Kafka and a real S3 server
	export SEEDS=$(SEEDS); $(WITH_SERVICES) bash -euo pipefail -c '$(call cargo_test,)'

images: build ## container images as OCI archives: target/images; TAG=0.1.0, REGISTRY=localhost
	scripts/images $(if $(TAG),--tag $(TAG)) $(if $(REGISTRY),--registry $(REGISTRY))

charts: ## helm lint, schema, promtool on alerts and dashboard, actionlint on the workflows
	scripts/charts

# The tests see the cluster from outside and depend on little: as a package they are built in a moment.
e2e: setup images ## install, first job, kills in a real Kubernetes: kind, or processes on this machine (root)
	e2e/cluster/with --nodes 2 -- bash -euo pipefail -c 'scripts/charts --server; \
	  run_tests() { $(TOOLS)/cargo-nextest nextest run --locked --cargo-profile release --package streamforge-e2e-cluster --features cluster -E "$$1"; }; \
  run_tests "not binary(/^api_/)"; \
  python3 bench/jobs.py --jobs 50 --minutes 0.25 --check; \
  export -f run_tests; API_CRASHES_FIRST=5 API_CRASHES_LAST=5 e2e/cluster/inside bash -c \
    "run_tests \"binary(api_rights)\" && run_tests \"binary(/^api_/) - binary(api_rights)\""; \
  e2e/cluster/upgrade'

# A ledger line by line, and no limit of time: cargo test. Compiled before: where it runs there is no way out.
API_TEST := cargo test --locked --release --package streamforge-e2e-cluster --features cluster
api_test = $(API_TEST) --no-run && e2e/cluster/with --no-kafka -- e2e/cluster/inside $(API_TEST) --test $(1) -- --nocapture

walks: setup images ## random walks over what can be declared: make walks WALKS=50 STEPS=10 SEED=1
	export WALKS=$${WALKS:-50}; $(call api_test,api_walks)

api-crashes: setup images ## the operator dies before and after each write of a job's life
	$(call api_test,api_crashes)

api-faults: setup images ## the API server refuses, forgets, is slow or tells old news
	export API_FAULTS=99; $(call api_test,api_faults)

e2e-slow: setup images ## the tests of e2e/cluster that take minutes: twenty kills, roll-backs
	e2e/cluster/with -- $(TOOLS)/cargo-nextest nextest run --locked --cargo-profile release \
	  --package streamforge-e2e-cluster --features cluster --ignore-default-filter -E 'test(/^slow::/)'

jobs-1000: setup images ## a thousand StreamJobs in one operator, idle for 10 min: make jobs-1000 IDLE=3
	e2e/cluster/with --no-kafka -- python3 bench/jobs.py --minutes $(IDLE)

cluster-up: ## start that Kubernetes and leave it running; prints what to export
	@e2e/cluster/local/cluster up

cluster-down: ## stop it and remove its data
	@e2e/cluster/services down --wipe
	@e2e/cluster/local/cluster down --wipe

services: ## start Kafka and an S3 server on 127.0.0.1 and leave them running
	@e2e/services/kafka up
	@e2e/services/s3 up

services-down: ## stop them and remove their data
	@e2e/services/kafka down --wipe
	@e2e/services/s3 down --wipe
	@e2e/services/careless-s3 down

negative: ## install the S3 servers that must be refused; tests use them where they are
	@scripts/setup negative

golden: setup ## the golden job files: straight, with a crash after every line, at parallelism 3
	$(call cargo_test,-E 'package(streamforge-golden)')

sim: setup ## seeded simulation of whole jobs: make sim SEEDS=100000
	export SEEDS=$(SEEDS); $(call cargo_test,-E 'package(streamforge-sim)')

process: setup build ## the real binary, killed and resumed, a short ledger
	$(call cargo_test,-E 'package(streamforge-process)')

kills: build flights-data ## the long kill ledger: make kills KILLS=200
	$(TOOLS)/python e2e/process/kills.py --kills $(KILLS)

kills-kafka: setup build ## the long ledger, Kafka to Kafka and to S3: make kills-kafka KILLS=200
	export KAFKA_KILLS=$(KILLS); $(WITH_SERVICES) bash -euo pipefail -c \
	  '$(call cargo_test,--test-threads 1 --no-capture -E "binary(kills) & package(streamforge-e2e-kafka)")'

network: build ## partitions, loss, slow links, delay and resets in network namespaces; needs root: make network SCENARIO=full,reset
	@scripts/setup network
	python3 e2e/process/network.py $(if $(SCENARIO),--scenario $(SCENARIO)) || \
	  { code=$$?; [ $$code = 2 ] && [ -n "$(CI)" ]; } # 2: this machine cannot, as it says

plant: setup ## plant ten bugs one by one and show which test catches each: bench/results/
	e2e/plant/run

plant-protocol: setup ## twenty-one bugs of the several-machines protocol, likewise; two need a real Kafka
	e2e/plant/run --protocol

fuzz-short: setup ## every fuzz target for a moment; longer: make fuzz-short FUZZ_SECONDS=600
	export FUZZ_SECONDS=$${FUZZ_SECONDS:-10}; $(call cargo_test,--profile fuzz -E 'test(/\bfuzz_/)')

.PHONY: flights-data
flights-data:
	@scripts/setup flights
	$(TOOLS)/python examples/flights/fetch.py

flights: build flights-data ## 336,776 real flights against DuckDB, at parallelism 1, 2 and 4
	$(TOOLS)/python examples/flights/compare.py

demo: build ## kill a job half-way, resume it at another parallelism, verify, look at it
	examples/demo/run

demo-kafka: build ## Kafka to Kafka on three task managers, one of them killed on the way
	$(WITH_SERVICES) examples/kafka/run

bench: build ## the same bytes into Flink 2.3 and into StreamForge: bench/results/
	@scripts/setup bench
	python3 bench/flink/compare.py

bench-kafka: build ## Kafka to Kafka beside Flink 2.3: bench/results/
	@scripts/setup bench
	e2e/services/with kafka -- python3 bench/kafka/compare.py

bench-latency: build ## from a record's time to a consumer's hands, Kafka to Kafka, at least and exactly once
	e2e/services/with kafka -- bash -euc '$(foreach mode,--relay --at-least-once --exactly-once --relay --at-least-once --exactly-once,cargo bench --locked --bench latency -- $(mode);)'

limits: build ## memory, checkpoints and scaling on this machine: bench/results/
	python3 bench/limits.py

micro: setup ## criterion benches of single parts
	cargo bench --locked --profile release --workspace --benches

clean:
	cargo clean
