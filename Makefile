# The targets of this project; `make help` lists them. Building, running and testing
# need Go and nothing else. Works with GNU make 3.81, which macOS has.

SHELL := bash
.DEFAULT_GOAL := help

# What `sluice version` says; without git the binary falls back to its build information.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
IMAGE   ?= ghcr.io/sluicecluster/sluice:dev

LDFLAGS := $(if $(VERSION),-X main.version=$(VERSION))
# The modules of sluice are those of go.work. Modules apart from it are built with GOWORK=off. Of these, the tests of TEST_MODULES
# need only Go. Of test/integration, connect is tested by test, manifests by test-cluster, proxies, which compiles Caddy, by proxy-test,
# and browser, which drives one, by console-test.
# The SDK is tested again, with the versions that it requires.
TEST_MODULES := client
# Tests that build sluice and run it as processes: test-cluster.
PROCESS_TESTS   := ./test/e2e
# These check files that the test cache does not know.
UNCACHED_TESTS  := ./test/arch

# Narrow a run with these, for example: make test PKG=./bucket TESTFLAGS='-run Window -v'
PKG        ?= ./...
# By import path, so that ./... and ./client/... have the packages of modules below the folder, too.
MODULE     := github.com/sluicecluster/sluice
PACKAGES    = $(patsubst ./%...,$(MODULE)/%...,$(PKG))
TESTFLAGS  ?=
FUZZTIME   ?= 30s
BENCH      ?= .
BENCHFLAGS ?= -benchmem
COUNT      ?= 6
RUNS       ?= 5
SEEDS      ?= 2000
FROM       ?= 0
# The last commit that changed what nodes run, which results of faults are about.
PRODUCT    := '*.go' go.mod ':!*_test.go' ':!bench' ':!test/arch' ':!test/faultnet'
PRODUCT_COMMIT = $(shell git log -1 --format=%h --abbrev=12 -- $(PRODUCT))$(shell git diff --quiet HEAD -- $(PRODUCT) || echo +)

.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## build bin/sluice
	go build -ldflags '$(LDFLAGS)' -o bin/sluice ./cmd/sluice

.PHONY: run
run: build ## build, then run three nodes on 127.0.0.1 until Ctrl-C
	bin/sluice demo --rules examples/rules

.PHONY: demo-regions
demo-regions: build ## build, then run three regions of two nodes on 127.0.0.1, 60 ms apart, until Ctrl-C
	bin/sluice demo --regions

.PHONY: test
test: ## every test that needs nothing but Go and runs no other process (PKG=./bucket TESTFLAGS='-run Window')
ifeq ($(PKG),./...)
	go test -parallel 4 $(TESTFLAGS) $$(go list $(PACKAGES) | grep -v -x -F $(foreach p,$(PROCESS_TESTS) $(UNCACHED_TESTS),-e $(patsubst ./%,$(MODULE)/%,$p)))
	go test -count 1 $(TESTFLAGS) $(UNCACHED_TESTS)
	@for module in $(TEST_MODULES); do \
		echo "go test ./... in $$module"; \
		GOWORK=off go -C $$module test -parallel 4 $(TESTFLAGS) ./... || exit; \
	done
	GOWORK=off go -C test/integration test $(TESTFLAGS) ./connect
	GOWORK=off go -C tools test $(TESTFLAGS) ./site ./mutants
else
	go test -count 1 -parallel 4 $(TESTFLAGS) $(PACKAGES)
endif

# Never from the cache, which does not know the binary that they build. SLUICE_PROXIES, SLUICE_CHROMIUM and SLUICE_PROMTOOL
# =required fail what is skipped otherwise where there is no nginx and HAProxy, no Chromium or no promtool.
.PHONY: test-cluster
test-cluster: ## clusters of real processes: every API, members that change, two versions, proxies, the console (TESTFLAGS='-run Audit')
	go test -short -count 1 -parallel 4 $(TESTFLAGS) ./test/e2e
ifeq ($(TESTFLAGS),)
	SLUICE_PROCESSES=1 go test -count 1 -run '^TestKill$$' ./internal/snapshot
	$(MAKE) change-test RUNS=1 CHANGE='TestChange(Grow|RollingRestart$$$$|Crash$$$$)'
	$(MAKE) upgrade-test UPGRADE='UpgradeRolling'
	$(MAKE) proxy-test
	$(MAKE) console-test
	go test -count 1 -run 'Alert|Dashboard|Promtool|Provision|Metrics' ./internal/node
endif

# Hours. What needs network namespaces needs root and ip.
.PHONY: test-long
test-long: ## the scenarios of test-cluster as a whole, faults of networks, hostile callers, floods, random schedules, the race detector, a release (SEEDS=2000)
	go test -count 1 -timeout 60m -parallel 4 ./test/e2e
	$(MAKE) change-test RUNS=1
	$(MAKE) upgrade-test
	$(MAKE) flood-test FLOOD=30s
	$(MAKE) hostile-test
	$(MAKE) netns-test fault-matrix-short
	GOWORK=off go -C bench test -count 1 ./...
	$(MAKE) sim
	go test -count 1 -timeout 0 ./cluster/quorum -run Random -args -seeds $(SEEDS)
	go test -count 1 -timeout 0 ./cluster -run 'Roles|RoleNodes|RoleBegun|KeyWorlds' -args -role-seeds $(SEEDS) -key-seeds 100
	go test -count 1 -timeout 0 ./test/sim -run 'Region(Subs|Edges)$$' -args -seeds $(SEEDS) -from $(FROM)
	go test -count 1 -timeout 0 ./bucket -rapid.checks 2000
	$(MAKE) race TESTFLAGS='-p 1'
	SLUICE_E2E_RACE=1 go test -count 1 -parallel 4 -run 'Audit|CrashAndReturn' ./test/e2e
	$(MAKE) release-test

.PHONY: race
race: ## the tests under the race detector (needs a C compiler)
	CGO_ENABLED=1 go test -race -parallel 4 -timeout 40m $(TESTFLAGS) $(PACKAGES)

.PHONY: audit
audit: ## every algorithm's quota, exact over three real processes, RUNS=5 times
	go test -count $(RUNS) -run Audit -v ./test/e2e

.PHONY: change-test
change-test: ## quotas over joins, leaves, restarts, crashes, pauses and unequal rules of real processes, RUNS=5 times
	go test -count $(RUNS) -timeout 0 -tags change -run '$(or $(CHANGE),Change)' -v ./test/e2e

.PHONY: upgrade-test
upgrade-test: ## clusters with nodes of this tree and of BASE (the last release, or the last commit), under load
	TESTS='$(UPGRADE)' tools/upgrade-test $(BASE)

.PHONY: hot-test
hot-test: ## one key that all nodes share, on real processes: never over its limit, and how fast (RUNS=5)
	go test -count $(RUNS) -timeout 0 -tags hot -run '$(or $(HOT),HotKey|ColdKey|EventualFar|EventualCut)' -v ./test/e2e

.PHONY: deadline-test
deadline-test: ## callers with 20, 50 and 100 ms while an owner is stopped, killed or cut off (root, ip): each is answered in time
	go test -count 1 -timeout 0 -tags 'deadline netns' -run '$(or $(DEADLINE),Deadlines)' -v ./test/e2e

.PHONY: flood-test
flood-test: ## every check of a new key for FLOOD=5m: memory stays within 1.25 of --memory-limit (FLOOD_LIMIT=256 MiB)
	FLOOD=$(or $(FLOOD),5m) FLOOD_LIMIT=$(FLOOD_LIMIT) go test -count 1 -timeout 0 -tags flood -run 'Flood' -v ./test/e2e

.PHONY: hostile-test
hostile-test: ## garbage, idle and slow connections, 64 MiB messages and more at each port, SIEGE=10s each: others are served
	SIEGE=$(or $(SIEGE),10s) go test -count 1 -timeout 0 -tags hostile -run '$(or $(HOSTILE),Outsiders|SilentPeer|OneConnection|CompleteMessages|HalfBodies)' -v ./test/e2e

.PHONY: soak-test
soak-test: ## MINUTES=20 of load while nodes join, leave and die at random (SEED=1): no over-admission, no leaks
	MINUTES=$(or $(MINUTES),20) SEED=$(or $(SEED),1) go test -count 1 -timeout 0 -tags soak -run 'Soak' -v ./test/e2e

.PHONY: proxy-test
proxy-test: ## the example files of nginx (if it is installed) and Caddy, run as they stand (Linux); operators' calls through nginx and HAProxy
	GOWORK=off go -C test/integration test -count 1 $(TESTFLAGS) ./proxies
	go test -count 1 -run OperatorsThroughProxies ./internal/node

.PHONY: observability-test
observability-test: ## alerts, dashboard and example for Prometheus, by promtool (which must be installed)
	SLUICE_PROMTOOL=required go test -count 1 -run 'Alert|Dashboard|Promtool|Provision|Metrics' ./internal/node

.PHONY: console-test
console-test: ## the console in headless Chromium, against three processes (skipped where there is none)
	GOWORK=off go -C test/integration test -count 1 $(TESTFLAGS) ./browser

.PHONY: console-shots
console-shots: ## regenerate the pictures in docs/operate/console.md (needs Chromium; six minutes)
	SLUICE_CHROMIUM=$(or $(SLUICE_CHROMIUM),required) GOWORK=off go -C test/integration test -count 1 -run Shots ./browser -args -shots ../../../docs/img

.PHONY: console-cost
console-cost: ## CPU of three watchers of the console on three nodes under load, in pairs of runs (ROUNDS=10 LOAD='--batch 10')
	ROUNDS='$(ROUNDS)' LOAD='$(LOAD)' go test -count 1 -timeout 0 -tags consolecost -run ConsoleCost -v ./test/e2e

.PHONY: netns-test
netns-test: ## three hosts, one isolated for 60 s (Linux, root, iproute2)
	go test -count 1 -timeout 60m -tags netns -run '$(or $(NETNS),CutOff)' -v ./test/e2e

.PHONY: fault-matrix
fault-matrix: ## every fault of network and processes against its bound, in network namespaces (CELLS='^cut' NODES=5 FORCE=1 FAULT_TCP=cubic; Linux, root, ip)
	FAULT_COMMIT=$(PRODUCT_COMMIT) RESULTS=$(abspath $(or $(RESULTS),bench/results/faults.jsonl)) FAULT_LOGS=$(CURDIR)/bin/faults \
		go test -count 1 -timeout 0 -tags faultmatrix -v ./test/faults

.PHONY: fault-matrix-short
fault-matrix-short: ## its ten shortest scenarios with three nodes, once each, without a record
	FAULT_SHORT=1 FAULT_LOGS=$(CURDIR)/bin/faults go test -count 1 -timeout 20m -tags faultmatrix ./test/faults

.PHONY: start-test
start-test: ## restarts, cold starts by names that are wrong, late or old, starts in a network partition, overlaps of two processes (ROUNDS=10 each, as fault-matrix)
	ROUNDS=$(ROUNDS) CELLS='^($(or $(START),restart-each|names-.*|seed-restarted|restart-in-cut|start-in-cut|overlap-.*))/3/' FORCE=1 RESULTS= FAULT_LOGS=$(CURDIR)/bin/faults \
		go test -count 1 -timeout 0 -tags faultmatrix -run Matrix -v ./test/faults

.PHONY: sim
sim: ## failures without each rule of the protocol, then seeded schedules of faults (SEEDS=100000)
	go test -tags guards ./bucket ./cluster ./cluster/handoff ./test/sim -count 1 -run 'Guard|RejectionMemory'
	go test ./test/sim -count 1 -timeout 0 -run 'Test(Lease|Slot)?Seeds$$' -v -args -seeds $(SEEDS) -from $(FROM)

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME=30s (PKG=./bucket)
	tools/fuzz $(FUZZTIME) $(PACKAGES)

.PHONY: mutants
mutants: ## change N=20 places of each PKG=./bucket, one at a time: those that no test notices
	GOWORK=off go -C tools build -o ../bin/mutants ./mutants
	bin/mutants -root . -n $(or $(N),20) -o bin/mutants.jsonl $(PKG)

# With the manifests, against the flags and files of this tree.
.PHONY: check
check: lint each-module ## what make test does not: form, dangerous code, generated code, manifests
	tools/gosec
	$(MAKE) check-generate
	GOWORK=off go -C test/integration test -count 1 $(TESTFLAGS) ./manifests

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, buf, go.mod, shell syntax, words
	tools/lint

.PHONY: each-module
each-module: ## build each module without go.work
	set -e; for dir in $$(go list -m -f '{{.Dir}}'); do GOWORK=off go -C $$dir build ./...; done

.PHONY: security
security: ## gosec, and known vulnerabilities where their database can be reached
	tools/gosec
	tools/govulncheck || [ $$? = 75 ]

.PHONY: generate
generate: ## regenerate code
	@# buf starts several of each at a time: a file that is still written cannot be executed
	for plugin in protoc-gen-go protoc-gen-go-grpc; do tools/run $$plugin --version; done
	cd proto && ../tools/run buf generate
	GOWORK=off go -C test/integration test -count 1 -run PrometheusRule ./manifests -args -write

.PHONY: check-generate
check-generate: ## fail if the generated code is out of date
	tools/check-generate

.PHONY: lines
lines: ## lines and files of Go by package (COMMIT=e1d2299 for another commit)
	@COMMIT=$(COMMIT) tools/lines

.PHONY: site
site: ## the documentation as a static site with search in bin/site
	GOWORK=off go -C tools run ./site .. ../bin/site

.PHONY: words
words: ## words of the documentation for users by page; at most 32,000 in all
	@go test -count 1 -run UserWords -v ./test/arch

.PHONY: call-path
call-path: ## the functions and files that run only because of one check that another node decides
	@tools/call-path

.PHONY: plots
plots: ## regenerate the pictures of the algorithms in docs/img
	go test -count 1 -run Pictures ./test/plots -args -write

.PHONY: load
load: build ## a load on the nodes of make run (LOAD='--callers 16 --batch 10')
	bin/sluice bench --addr 127.0.0.1:7460,127.0.0.1:7470,127.0.0.1:7480 $(LOAD)

.PHONY: bench
bench: build ## against bare gRPC, Redis and other limiters, real processes
	GOWORK=off go -C bench run . rows -only '^(one-node|three-nodes|redis|stream|sdk|keys|more-nodes)$$'
	GOWORK=off go -C bench run . draw -out ../docs/img results/rows.json
	GOWORK=off go -C bench test ./report -run Bars -update

.PHONY: bench-more
bench-more: build ## the cost of TLS, hot keys, traces, metrics, a join and snapshots of 10^7 counters
	GOWORK=off go -C bench run . rows -peers=false -only '^(tls|hot|tracing|telemetry|join|snapshot)$$' -out results/more.json

.PHONY: bench-full
bench-full: build ## the whole grid of callers, checks a call, keys and nodes; takes hours
	GOWORK=off go -C bench run . run -nodes 1,3,5 -callers 1,8,64,256 -checks 1,10,100,1000 -keys 10000,100000,1000000,10000000 -distributions uniform,zipf -out results/grid.json
	GOWORK=off go -C bench run . draw -out ../docs/img results/grid.json

.PHONY: bench-go
bench-go: ## Go benchmarks into bin/bench/COMMIT.txt, with a summary (PKG=./bucket BENCH=Take COUNT=6)
	@mkdir -p bin/bench
	set -o pipefail; go test -run '^$$' -bench '$(BENCH)' $(BENCHFLAGS) -count $(COUNT) $(PACKAGES) | tee 'bin/bench/$(or $(VERSION),now).txt'
	tools/run benchstat 'bin/bench/$(or $(VERSION),now).txt'

.PHONY: bench-compare
bench-compare: ## benchmarks of this tree against BASE=main, run alternately (PKG, BENCH, COUNT)
	BENCH='$(BENCH)' BENCHFLAGS='$(BENCHFLAGS)' COUNT='$(COUNT)' tools/bench-compare '$(or $(BASE),main)' $(PACKAGES)

.PHONY: image
image: ## build the container image ghcr.io/sluicecluster/sluice:dev (needs Docker)
	CGO_ENABLED=0 GOOS=linux go build -trimpath -ldflags '-s -w $(LDFLAGS)' -o bin/image/sluice ./cmd/sluice
	GOWORK=off go -C tools run ./roots >bin/image/ca-certificates.crt
	docker build --tag $(IMAGE) .

.PHONY: release
release: ## archives, packages, images, chart, formula, bills of materials and checksums into bin/release (VERSION=v1.2.3, TARGETS=linux/arm64)
	VERSION='$(VERSION)' TARGETS='$(TARGETS)' tools/release/build

.PHONY: release-test
release-test: ## make a release twice from nothing, and compare (TARGETS=linux/arm64 for some); use its modules as others do
	TARGETS='$(TARGETS)' tools/release-test
	GOWORK=off go -C tools test -count 1 -v ./modules

.PHONY: compose-up
compose-up: image build ## three nodes in containers, ports on 127.0.0.1 (needs Docker)
	deploy/compose/up

.PHONY: compose-down
compose-down: ## stop and remove them
	deploy/compose/down

.PHONY: compose-test
compose-test: image build ## bring three nodes up, audit them, take them down
	deploy/compose/audit

.PHONY: ci
ci: ## continuous integration: .ci/run
	.ci/run

.PHONY: clean
clean: ## remove bin
	rm -rf bin
