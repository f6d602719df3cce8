# The targets of this project; `make help` lists them. Building, running and testing
# need Go and nothing else. Works with GNU make 3.81, which macOS has.

SHELL := bash
.DEFAULT_GOAL := help

# What `sluice version` says; without git the binary falls back to its build information.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
IMAGE   ?= ghcr.io/sluicecluster/sluice:dev

LDFLAGS := $(if $(VERSION),-X main.version=$(VERSION))

# Narrow a run with these, for example: make test PKG=./bucket TESTFLAGS='-run Window -v'
PKG       ?= ./...
TESTFLAGS ?=
# By import path, so that ./... and ./client/... have the packages of modules below the folder, too.
MODULE   := github.com/sluicecluster/sluice
PACKAGES  = $(patsubst ./%...,$(MODULE)/%...,$(PKG))
# Without a go.work: the SDK, with the versions that it requires, and what is in the module of tests or of tools.
ALONE    := GOWORK=off go -C

.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## build bin/sluice
	go build -ldflags '$(LDFLAGS)' -o bin/sluice ./cmd/sluice

.PHONY: run
run: build ## build, then run three nodes on 127.0.0.1 until Ctrl-C
	bin/sluice demo --rules examples/rules

# Tests of real processes are test-cluster's. The test cache does not know the files that test/arch checks.
.PHONY: test
test: ## every test that needs nothing but Go and runs no other process (PKG=./bucket TESTFLAGS='-run Window')
ifeq ($(PKG),./...)
	go test -parallel 4 $(TESTFLAGS) $$(go list $(PACKAGES) | grep -v -x -F -e $(MODULE)/test/e2e -e $(MODULE)/test/arch)
	go test -count 1 $(TESTFLAGS) ./test/arch
	$(ALONE) client test -parallel 4 $(TESTFLAGS) ./...
	$(ALONE) test/integration test $(TESTFLAGS) ./connect
	$(ALONE) tools test $(TESTFLAGS) ./site ./mutants
else
	go test -count 1 -parallel 4 $(TESTFLAGS) $(PACKAGES)
endif

# Never from the cache, which does not know the binary that they build. SLUICE_PROXIES, SLUICE_CHROMIUM and SLUICE_PROMTOOL
# =required fail what is skipped otherwise where there is no nginx and HAProxy, no Chromium or no promtool.
.PHONY: test-cluster
test-cluster: ## clusters of real processes: every API, members that change, two versions, proxies, the console (TESTFLAGS='-run Audit')
	go test -count 1 -parallel 6 $(TESTFLAGS) ./test/e2e
ifeq ($(TESTFLAGS),)
	SLUICE_PROCESSES=1 go test -count 1 -run '^TestKill$$' ./internal/snapshot
	go run ./test/scenario change -run 'TestChange(Grow|RollingRestart$$|Crash$$)'
	TESTS=UpgradeRolling go run ./test/scenario upgrade
	go run ./test/scenario alerts
	go run ./test/scenario console
	go run ./test/scenario proxies
endif

# Hours. What needs network namespaces needs root and ip.
.PHONY: test-long
test-long: ## every scenario, random schedules, fuzzing, the race detector, a release (SEEDS=2000)
	SLUICE_LONG=1 go test -count 1 -timeout 60m -parallel 4 ./test/e2e
	set -e; for s in change upgrade hot deadlines cut regions faults-short hostile guards; do go run ./test/scenario $$s; done
	FLOOD=30s go run ./test/scenario flood
	go run ./test/scenario sim -args -seeds $(or $(SEEDS),2000)
	go test -count 1 -timeout 0 ./cluster/quorum -run Random -args -seeds $(or $(SEEDS),2000)
	go test -count 1 -timeout 0 ./cluster -run 'Roles|RoleNodes|RoleBegun|KeyWorlds' -args -role-seeds $(or $(SEEDS),2000) -key-seeds 100
	go test -count 1 -timeout 0 ./test/sim -run 'Region(Subs|Edges)$$' -args -seeds $(or $(SEEDS),2000)
	go test -count 1 -timeout 0 -rapid.checks 1000 -rapid.seed 0 $$(git grep -l test/seeded -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's,^,./,')
	tools/fuzz 30s $(MODULE)/...
	$(ALONE) bench test -count 1 ./...
	go test -race -parallel 4 -p 1 -timeout 60m $(MODULE)/...
	SLUICE_E2E_RACE=1 go test -count 1 -parallel 4 -run 'Audit|APIs|Slots' ./test/e2e
	go run ./test/scenario release

.PHONY: check
check: ## what make test does not: form, dangerous code, generated code, manifests, each module without go.work
	tools/lint
	set -e; for dir in $$(go list -m -f '{{.Dir}}'); do $(ALONE) $$dir build ./...; done
	tools/gosec
	tools/check-generate
	$(ALONE) test/integration test -count 1 $(TESTFLAGS) ./manifests

.PHONY: mutants
mutants: ## change N=20 places of PKG=./bucket, one at a time: those that no test notices
	$(ALONE) tools build -o ../bin/mutants ./mutants
	bin/mutants -root . -n $(or $(N),20) -o bin/mutants.jsonl $(PKG)

.PHONY: bench
bench: build ## against bare gRPC, Redis and other limiters, real processes
	$(ALONE) bench run . rows -only '^(one-node|three-nodes|redis|stream|sdk|keys|more-nodes)$$'
	$(ALONE) bench run . draw -out ../docs/img results/rows.json
	$(ALONE) bench test ./report -run Bars -update

.PHONY: generate
generate: ## regenerate code
	@# buf starts several of each at a time: a file that is still written cannot be executed
	for plugin in protoc-gen-go protoc-gen-go-grpc; do tools/run $$plugin --version; done
	cd proto && ../tools/run buf generate
	$(ALONE) test/integration test -count 1 -run PrometheusRule ./manifests -args -write

.PHONY: image
image: ## build the container image ghcr.io/sluicecluster/sluice:dev (needs Docker)
	CGO_ENABLED=0 GOOS=linux go build -trimpath -ldflags '-s -w $(LDFLAGS)' -o bin/image/sluice ./cmd/sluice
	$(ALONE) tools run ./roots >bin/image/ca-certificates.crt
	docker build --tag $(IMAGE) .

.PHONY: release
release: ## archives, packages, images, chart, formula, bills of materials and checksums into bin/release (VERSION=v1.2.3, TARGETS=linux/arm64)
	VERSION='$(VERSION)' TARGETS='$(TARGETS)' tools/release/build
