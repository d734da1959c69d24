# `make demo` builds everything and runs the main job; `make test` passes all tests; `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
PYTHON_DIRS := python tests bench docs examples
# Rooms with quick tests (those of analytics and rpc draw many cases or wait for processes); files in which every test needs a server are not even read.
UNIT_ROOMS := $(addprefix tests/,auth client concurrency domain fetching gateway metrics operations owners resources storage tracing voting)
UNIT_FILES := $(addprefix tests/,test_architecture.py test_assertions.py test_docs.py test_errors.py test_ids.py test_logs.py test_settings.py)
FACES := python/broker/images/faces
CONVERTER := $(addprefix $(FACES)/,convert.py weights.py graph.py ssd_network.py tiny_network.py landmark_network.py models.py)
RUST := $(shell find native -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock

# Else each process compiles what it imports, all of Ray, since uv compiles nothing.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help check wheel hooks docs picture pictures screens demo test build lint bench bench-peers soak adversity audience cluster conformance fuzz fuzzapi fuzzlinks sanitize leaks hostile attack gameday lock manifests dashboards observability audit clean

demo: build ## Build, start everything on this machine and show a live program.
	$(BIN)/broker demo

BUILT := .venv/native.stamp $(FACES)/built/models.json tests/asyncapi/node_modules/.package-lock.json js/client/dist/.stamp python/broker/overlay/index.html python/broker/dashboard/index.html

# Its parts wait for the network as often as for a processor.
build: ## Build only.
	@$(MAKE) --no-print-directory -j2 $(BUILT)

# One clear line for what is missing, instead of the middle of a build that fails.
.PHONY: toolchain
toolchain:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is missing; install Python 3.11 or newer, or say make PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than 3.11; say make PYTHON=…" >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "error: cargo is missing; install a Rust toolchain" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "error: cc is missing; install a C compiler" >&2; exit 1; }
	@command -v npm >/dev/null || { echo "error: npm is missing; install Node.js 20 or newer" >&2; exit 1; }

# pip compiles all that it installs, which takes it most of two minutes. uv does not read pip's configuration, so where
# packages come another way pip has to do it.
UV := $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python --require-hashes
.venv/python.stamp: requirements.lock | toolchain
	$(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.lock
	$(BIN)/pip install --quiet --no-deps --require-hashes -r .venv/uv.lock
	$(UV) -r requirements.lock || $(BIN)/pip install --quiet --require-hashes -r requirements.lock
	touch $@

.venv/native.stamp: .venv/python.stamp pyproject.toml $(RUST) | toolchain
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# What the OpenAPI document is made of, and with it the types of the JavaScript client.
DOCUMENTED := $(shell find $(addprefix python/broker/,operations resources voting domain rest) -name '*.py') python/broker/settings.py
JS := js/client
JS_SOURCES := $(shell find $(JS)/src $(JS)/test -name '*.ts*' -not -name schema.ts) $(addprefix $(JS)/,build.mjs tsconfig.json tsconfig.build.json)

$(JS)/node_modules/.stamp: $(JS)/package.json $(JS)/package-lock.json $(JS)/.npmrc | toolchain
	cd $(JS) && npm ci --no-audit --no-fund --ignore-scripts --prefer-offline --loglevel=error
	touch $@

.build/openapi.json: .venv/native.stamp $(DOCUMENTED)
	mkdir -p .build && $(BIN)/broker openapi > $@.new && mv $@.new $@

$(JS)/src/schema.ts: .build/openapi.json $(JS)/node_modules/.stamp
	cd $(JS) && npm run --silent types

$(JS)/dist/.stamp: $(JS)/src/schema.ts $(JS_SOURCES)
	cd $(JS) && npm run --silent build
	touch $@

# Overlays and dashboard bundle the client from its source and use its tools.
OVERLAY := js/overlay
OVERLAY_SOURCES := $(shell find $(OVERLAY)/src $(OVERLAY)/static $(OVERLAY)/test -type f) $(OVERLAY)/build.mjs tests/voting/measures.json

$(OVERLAY)/node_modules/.stamp: $(OVERLAY)/package.json $(OVERLAY)/package-lock.json $(OVERLAY)/.npmrc | toolchain
	cd $(OVERLAY) && npm ci --no-audit --no-fund --ignore-scripts --prefer-offline --loglevel=error
	touch $@

python/broker/overlay/index.html: $(OVERLAY_SOURCES) $(JS)/dist/.stamp $(OVERLAY)/node_modules/.stamp
	cd $(OVERLAY) && npm run --silent build
	touch $@

DASHBOARD := js/dashboard
DASHBOARD_SOURCES := $(shell find $(DASHBOARD)/src $(DASHBOARD)/test -type f) $(addprefix $(DASHBOARD)/,build.mjs tsconfig.json)

$(DASHBOARD)/node_modules/.stamp: $(DASHBOARD)/package.json $(DASHBOARD)/package-lock.json $(DASHBOARD)/.npmrc | toolchain
	cd $(DASHBOARD) && npm ci --no-audit --no-fund --ignore-scripts --prefer-offline --loglevel=error
	touch $@

# It has the SDK in it, from source; its tests have the SDK's browser.
python/broker/dashboard/index.html: $(JS)/src/schema.ts $(JS_SOURCES) $(DASHBOARD_SOURCES) $(DASHBOARD)/node_modules/.stamp
	cd $(DASHBOARD) && npm run --silent build -- --tests

# AsyncAPI's own parser, which tests let read our document.
tests/asyncapi/node_modules/.package-lock.json: tests/asyncapi/package-lock.json | toolchain
	npm ci --prefix tests/asyncapi --no-audit --no-fund --ignore-scripts --prefer-offline --loglevel=error
	touch $@

help: ## Say what there is to make.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

check: build ## What developers run all day, in under a minute: style, import contracts, tests without a server.
	$(BIN)/ruff format --check --quiet $(PYTHON_DIRS)
	$(BIN)/ruff check --quiet $(PYTHON_DIRS)
	$(BIN)/lint-imports >/dev/null
	$(BIN)/pytest -q -m "not postgres and not cluster" $(UNIT_FILES) \
	    $$(grep -rLE --include='test_*.py' '^pytestmark.*\b(cluster|postgres)\b' $(UNIT_ROOMS) | sort)

hooks: ## Have git check what is committed; see .githooks.
	git config core.hooksPath .githooks

wheel: build ## The Python SDK as a wheel for every platform, in dist/.
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir dist ./python

docs: .venv/python.stamp ## The documentation as a site with search, in .build/docs.
	$(BIN)/python -m sphinx -c docs --quiet --fail-on-warning --keep-going --doctree-dir .build/doctrees . .build/docs
	@echo "file://$(CURDIR)/.build/docs/index.html"

picture: build ## Draw docs/architecture.svg from docs/architecture.toml.
	$(BIN)/python docs/draw.py

# Without these models all works but the search for faces, so a build goes on where npm cannot fetch them.
$(FACES)/built/models.json: models/package-lock.json $(CONVERTER) | .venv/native.stamp
	@mkdir -p .build/faces && cp models/package.json models/package-lock.json .build/faces
	@if (cd .build/faces && npm ci --silent --ignore-scripts --no-audit --no-fund --prefer-offline --fetch-retries=1 --fetch-retry-mintimeout=1000); then \
	    $(BIN)/python -m broker.images.faces.convert .build/faces/node_modules/@vladmandic/face-api $(@D); \
	else echo "note: npm cannot fetch the face models as they are pinned; face crops go by attention until \`make build\` can" >&2; fi

# Beside what is still being built: the build waits for the network, and no part of it uses what clippy compiles.
lint: ## Format, style, types and import contracts; builds, too.
	@$(MAKE) --no-print-directory -j3 $(BUILT) lint-python lint-rust lint-js

.PHONY: lint-python lint-rust lint-js
lint-python: .venv/native.stamp ## Python; part of `make lint`.
	$(BIN)/ruff format --check $(PYTHON_DIRS)
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/mypy
	$(BIN)/lint-imports

lint-rust: | toolchain ## Rust; part of `make lint`.
	cargo fmt --all --check
	nice cargo clippy --all-targets --quiet -- -D warnings

lint-js: $(JS)/dist/.stamp $(OVERLAY)/node_modules/.stamp $(DASHBOARD)/node_modules/.stamp ## TypeScript; part of `make lint`.
	cd $(JS) && npm run --silent lint

test: lint ## Everything.
	$(MAKE) --no-print-directory --keep-going -j4 test-cluster-1 test-cluster-2 test-python-1 test-python-2 test-python-3 test-python-4 test-python-5 test-native

# Tests of whole products wait for most of their time, and poll while they do. So two rows of them run beside each
# other, and the other tests, two lanes at a time, get the processor time that the rows leave.
.PHONY: test-cluster-1 test-cluster-2
test-cluster-1: ROW := test-product test-adversity
test-cluster-2: ROW := test-browsers test-nodes
test-cluster-1 test-cluster-2: build
	@status=0; for each in $(ROW); do $(MAKE) --no-print-directory $$each || status=1; done; exit $$status

BESIDE := nice -n 5
PYTEST := $(BIN)/pytest --tb=short --durations=12 --durations-min=5
# The last file, so that the two rows take equally long.
BROWSER_FILES := tests/javascript tests/attack tests/demo tests/owners tests/deployments/test_lapsed_lease.py
NODES_FILES := $(addprefix tests/deployments/,test_joined.py test_joined_changes.py test_joined_refusals.py)
PRODUCT_FILES = $$(grep -rl --include='test_*.py' 'mark\.cluster' tests | grep -vE '^tests/(adversity|javascript|attack|demo|owners)/|/test_joined|/test_lapsed_lease' | sort)
# Five parts of equal length, so that none goes on alone at the end; the last one has every room that no other has.
PYTHON_1 := $(addprefix tests/,rest client)
PYTHON_2 := $(addprefix tests/,images owners)
PYTHON_3 := $(addprefix tests/,gateway deployments)
PYTHON_4 := $(addprefix tests/,test_*.py storage javascript native bad_input)
PYTHON_ROOMS := $(wildcard $(PYTHON_1) $(PYTHON_2) $(PYTHON_3) $(PYTHON_4))
.PHONY: test-python test-python-1 test-python-2 test-python-3 test-python-4 test-python-5 test-product test-nodes test-browsers test-adversity test-native
test-python: test-python-1 test-python-2 test-python-3 test-python-4 test-python-5 ## The tests without Ray; part of `make test`.

test-python-1: build
	$(BESIDE) $(PYTEST) -m "not cluster" $(PYTHON_1)

test-python-2: build
	$(BESIDE) $(PYTEST) -m "not cluster" $(PYTHON_2)

test-python-3: build
	$(BESIDE) $(PYTEST) -m "not cluster" $(PYTHON_3)

test-python-4: build
	$(BESIDE) $(PYTEST) -m "not cluster" $(PYTHON_4)

test-python-5: build
	$(BESIDE) $(PYTEST) -m "not cluster" $(PYTHON_ROOMS:%=--ignore=%)

test-product: build ## The tests of the whole product on Ray; part of `make test`.
	$(PYTEST) -m cluster $(PRODUCT_FILES)

test-nodes: build ## Those of two nodes and more; part of `make test`.
	$(PYTEST) -m cluster $(NODES_FILES)

test-browsers: build ## Those with browsers, attacks and the demonstration; part of `make test`.
	$(PYTEST) -m cluster $(BROWSER_FILES)

test-adversity: build ## The product whose processes are killed and hang, under load; part of `make test`.
	$(PYTEST) -m cluster tests/adversity

test-native: build ## The tests in Rust; part of `make test`.
	$(BESIDE) cargo test --quiet --workspace --exclude broker-native  # whose tests are Python's

screens: build ## Screenshots of every overlay and every screen of the dashboard, in .build/screens.
	$(BIN)/python -m tests.javascript.screens

pictures: build ## Take the documentation's pictures of overlays and dashboard anew, into docs/pictures.
	$(BIN)/python -m tests.javascript.screens --docs

conformance: build ## The WebSocket protocol cases against the native server.
	$(BIN)/python -m tests.conformance

soak: build ## A million events under random faults; SOAK="--events 1000 --seed 7" and so on.
	$(BIN)/python -m tests.adversity.soak $(SOAK)

gameday: build ## Rehearse a final with a fault in each scene, and print a verdict; GAMEDAY="--scene 60 --viewers 1000" and so on.
	$(BIN)/python -m tests.adversity.gameday $(GAMEDAY)

adversity: build ## Two nodes, of which one is cut off and dies; standbys that lack events take over; two products on one database.
	$(BIN)/python -m tests.adversity.two_nodes
	$(BIN)/python -m tests.adversity.failover
	$(BIN)/python -m tests.adversity.two_products

audience: build ## 30,000 viewers of one program and 100 x 100 of others on three nodes, with votes; AUDIENCE="--viewers 3000" and so on. As root.
	$(BIN)/python -m tests.cluster.audience $(AUDIENCE)

cluster: build ## Three nodes with addresses of their own, of which one dies, is cut off, is slow; SCENES="--relay-from 1 node-dies" and so on. As root.
	$(BIN)/python -m tests.cluster $(SCENES)

fuzzapi: build ## The HTTP door under requests made from its OpenAPI document, for ten minutes.
	$(BIN)/python -m tests.rest.fuzzing

fuzzlinks: build ## The links between processes under bytes that nobody meant, for ten minutes.
	$(BIN)/python -m tests.rpc.fuzzing

FUZZ_S ?= 300
FUZZ_TARGETS ?= handshake proxy frames envelope log answers

.PHONY: nightly
nightly:
	@cargo +nightly --version >/dev/null 2>&1 || { echo "error: no nightly Rust toolchain; rustup toolchain install nightly" >&2; exit 1; }

fuzz: nightly ## Each target for FUZZ_S seconds, from the committed corpus. Needs a nightly toolchain and cargo-fuzz.
	@cargo fuzz --version >/dev/null 2>&1 || { echo "error: cargo-fuzz is missing; cargo install cargo-fuzz" >&2; exit 1; }
	for target in $(FUZZ_TARGETS); do mkdir -p .build/fuzz/$$target && (cd native/gateway && cargo +nightly fuzz run $$target \
	    ../../.build/fuzz/$$target fuzz/corpus/$$target -- -max_total_time=$(FUZZ_S) -max_len=4096) || exit 1; done

TARGET := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')

sanitize: nightly ## The native tests under AddressSanitizer and ThreadSanitizer. Needs a nightly toolchain.
	CARGO_TARGET_DIR=.build/asan RUSTFLAGS=-Zsanitizer=address \
	    cargo +nightly test --target $(TARGET) --workspace --exclude broker-native --lib --test gateway --test threads
	CARGO_TARGET_DIR=.build/tsan RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
	    TSAN_OPTIONS="suppressions=$(CURDIR)/native/tsan.txt" \
	    cargo +nightly test --target $(TARGET) -p broker-gateway --features tsan --test threads

leaks: ## 100,000 connections and 2,500 programs come and go.
	BROKER_LEAK_ROUNDS=250 cargo test --release --test leaks

hostile: ## How late viewers get their messages while others attack. Needs two cores and root.
	cargo run --release --example hostile

attack: build ## What strangers, tenants, roles and neighbours may try, doubled and doubled again; ATTACK="--factors 1 slow" for some.
	$(BIN)/python -m tests.attack $(ATTACK)

.venv/bench.stamp: bench/requirements.lock .venv/python.stamp
	$(BIN)/pip install --quiet --require-hashes -r bench/requirements.lock
	touch $@

bench: build .venv/bench.stamp ## The side-by-side table; then HTTP; PART=… for one other (`python -m bench --help` lists them), ARGS for options.
	$(BIN)/python -m bench $(PART) $(ARGS)
	$(if $(PART),,$(BIN)/python -m bench http)

bench-peers: build ## Get the peers that the table compares with; the bench does it too, at its first use.
	$(BIN)/python -m bench.peers

lock: .venv/python.stamp ## Resolve the Python dependencies anew.
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-header --extra server --extra insightface --extra traces --group dev --group docs pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-header --group bench --constraint requirements.lock -o bench/requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-header --extra server --extra traces --constraint requirements.lock pyproject.toml -o deploy/docker/requirements.lock

manifests: ## Render deploy/kuberay by kustomize, as its tests and `kubectl apply -f` read it; KUSTOMIZE="kubectl kustomize" works too.
	$(BIN)/python -m tests.deployments.manifests $(or $(KUSTOMIZE),kustomize build)

dashboards: build ## Make the dashboards of deploy/grafana from dashboards.toml.
	$(BIN)/python -m tests.deployments.dashboards

observability: build ## Rules and dashboards against a real Prometheus that scrapes the demonstration; fetches Debian's.
	$(BIN)/python -m tests.deployments.observability

AUDIT_TOOLS := .build/audit

audit: build ## Known faults, licences and sources of what we depend on; ARGS=--strict fails for what cannot be checked.
	$(PYTHON) -m venv $(AUDIT_TOOLS) && $(AUDIT_TOOLS)/bin/pip install --quiet 'pip-audit>=2.10,<3'
	@test -x $(AUDIT_TOOLS)/bin/cargo-deny || cargo install --quiet --locked --root $(AUDIT_TOOLS) cargo-deny@^0.20 \
	    || echo "cargo-deny cannot be installed" >&2
	$(BIN)/python -m tests.audit --python-tools $(AUDIT_TOOLS) --rust-tools $(AUDIT_TOOLS) $(ARGS)

clean: ## Remove what was built and installed.
	rm -rf .venv .build target python/broker/_native*.so $(FACES)/built $(JS)/node_modules $(JS)/dist $(JS)/.build $(JS)/src/schema.ts $(OVERLAY)/node_modules python/broker/overlay \
	    $(DASHBOARD)/node_modules $(DASHBOARD)/.build python/broker/dashboard
