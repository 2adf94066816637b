# A system's own Python is compiled with what a profile of it tells; one that a version manager compiles mostly is
# not, and takes a fifth more CPU time.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3.11 /usr/bin/python3.1[2-4]) python3)
VENV ?= .venv
BIN := $(VENV)/bin
# pip takes ten times the CPU time of uv for the same packages. What is imported is compiled then.
UV := .venv-uv/bin/uv
ENVIRONMENT := $(UV) venv --quiet --seed --allow-existing
INSTALL := $(UV) pip install --quiet --python
# Where an image's environment forbids bytecode every process would compile all modules and tests again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo sweep-demo system-packages test lint types test-rooms test-alone test-waiting test-sanitized test-all test-runs test-lowest wheel wheels docs pictures plotly site release-check version audit test-e2e test-embeddings test-k8s test-manifests test-pods fuzz presets properties coverage frozen house mutate bench bench-report bench-compare bench-coverage bench-master soak soak-short soak-ui \
	requirements clean

help:  ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

demo: $(VENV)/.runtime  ## a simulated deployment, a master and 2 workers: build/demo/report.html
	rm -rf build/demo
	$(BIN)/llm-locust run --sim --users 40 --for 20s --workers 2 --input-tokens lognormal:256,0.6 \
		--output-tokens uniform:32,128 --slo "ttft=500ms tpot=50ms" --out build/demo

sweep-demo: $(VENV)/.runtime  ## a sweep of 8 loads against the simulator, in under 4 minutes: build/sweep-demo/report.html
	rm -rf build/sweep-demo
	$(BIN)/llm-locust sweep --sim --sweep users=1,2,4,8,12,16,24,32 --stage-time 12s --warmup 2s --out build/sweep-demo

test:  ## lint, types, the tests of every day
	.ci/all daily

# What judges no time: a process for each core. Kubernetes has `make test-k8s`.
KUBERNETES := tests/k8s tests/pods
PYTEST := $(BIN)/pytest --durations 20 --durations-min 5 $(KUBERNETES:%=--ignore %)
lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
types:
	$(BIN)/mypy
test-rooms:
	tests/again.sh rooms $(PYTEST) --forks 2 -m "not e2e and not alone and not run"

# What judges times: one at a time, beside nothing that does not give way.
ALONE ?= alone and not run or everyday
test-alone:
	tests/again.sh alone $(PYTEST) -m "($(ALONE)) and not e2e"

test-all:  ## all tests: `test`, `test-runs`, the audit, pods, real servers and balancers, a short soak
	.ci/all

test-runs: $(VENV)/.test  ## whole runs: faults, stops, the web UI; browsers, uploads
	$(MAKE) --no-print-directory test-waiting test-sanitized
	$(MAKE) --no-print-directory test-alone ALONE="run and alone and not everyday"

# Whole runs wait for events most of the time; four at once were late on two cores that others kept busy.
test-waiting:
	tests/again.sh runs $(PYTEST) --forks 3 -m "run and not everyday and not alone and not e2e" --ignore $(SANITIZED)

# It computes and waits for nothing, so it is no part of those.
SANITIZED := tests/client/http/test_client_reader_sanitized.py
test-sanitized: $(VENV)/.test  ## the reader in C under the compiler's sanitizers
	$(BIN)/pytest $(SANITIZED)

# All, or those whose names begin so, as aa-.
PRESETS ?= all
presets: $(VENV)/.test  ## a whole run of 10 s of every public protocol against the simulator, in some 5 minutes
	LLM_LOCUST_TEST_PRESETS=$(PRESETS) $(BIN)/pytest tests/cli/test_all_presets.py

# What the dependencies are used for: records, requests, the openai SDK, options, figures, pages, one whole run.
LOWEST_TESTS ?= tests/core/test_batch.py tests/core/test_arrow.py tests/wire/test_sse.py tests/wire/test_reply.py \
	tests/store/test_store.py tests/store/test_store_reading.py tests/scenario/test_workload_scenario.py \
	tests/scenario/test_workload_yaml_lines.py tests/options/test_options_table.py \
	tests/client/test_client_openai_sdk.py tests/client/test_client_messages.py tests/report/test_report_formats.py \
	tests/metrics/test_metrics_catalogue.py tests/deployment/test_deployment_exposition.py \
	tests/workload/test_workload_tokenizer.py tests/workload/test_workload_answers.py \
	tests/swarm/users/test_swarm_own_dialect.py
test-lowest: .venv-lowest/.installed  ## the lowest versions of the dependencies that the project allows
	LLM_LOCUST_TEST_EXAMPLES=5 tests/again.sh lowest .venv-lowest/bin/pytest $(LOWEST_TESTS)

SYSTEM := chromium-headless-shell fonts-dejavu-core prometheus nginx haproxy gcc libc6-dev python3-dev
system-packages:  ## as root on Debian: a compiler, the browser, Prometheus and balancers that some tests are skipped without
	dpkg -s $(SYSTEM) >/dev/null 2>&1 || { apt-get update -q && apt-get install -qy --no-install-recommends $(SYSTEM); }

# The wheel is made of the sdist, so that what that lacks is seen.
wheel: $(VENV)/.test  ## build/wheel: an sdist and this machine's wheel, tried in an empty environment
	rm -rf build/wheel && mkdir -p build/wheel
	$(UV) build --quiet --python $(BIN)/python --no-build-isolation --out-dir build/wheel .
	$(ENVIRONMENT) --python $(PYTHON) build/wheel/env
	$(INSTALL) build/wheel/env build/wheel/*-abi3-*.whl
	cd build/wheel && env/bin/python -P -c "from llm_locust.client.http.reader import why_python as why; assert why() is None, why()"
	ls build/wheel/*.whl build/wheel/*.tar.gz

# What each has to be is in pyproject.toml. `make release-check WHEELS=build/wheelhouse/*.whl` runs a load with each.
wheels: $(VENV)/.test  ## build/wheelhouse: the wheels to publish, by cibuildwheel in containers of manylinux
	$(UV) tool run cibuildwheel --platform linux --output-dir build/wheelhouse

docs: $(VENV)/.test  ## the generated references in docs: options, gates, scenario
	$(BIN)/python -m llm_locust.options.table docs/options.md
	$(BIN)/python -m llm_locust.figures.reference docs

frozen: $(VENV)/.test  ## the texts of tests/frozen anew from its runs: git shows which lines a change has changed
	$(BIN)/python tests/frozen/frozen_texts.py

house: $(VENV)/.test  ## the size of the package and its tests: lines, modules, what asks for a second look
	$(BIN)/python .ci/house.py

pictures: $(VENV)/.test  ## the pictures of README.md, from a run against the simulator; needs Chromium
	$(BIN)/python .ci/pictures.py

# Of another version: PLOTLY=4.2.0. Tests of pages in Chromium say whether its charts are drawn.
PLOTLY ?= 4.1.1
plotly:  ## the script of the charts, from npm
	rm -rf build/plotly && mkdir -p build/plotly
	cd build/plotly && npm pack --silent plotly.js-cartesian-dist-min@$(PLOTLY) && tar xzf *.tgz
	gzip -9nc build/plotly/package/plotly-cartesian.min.js > llm_locust/report/plotly/plotly-cartesian.min.js.gz
	cp build/plotly/package/LICENSE llm_locust/report/plotly/

site: $(VENV)/.test .venv-docs/.installed  ## the pages as a site in build/site; fails on a broken link
	$(BIN)/python -m llm_locust.figures.reference docs build/reference
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs --quiet build --strict

release-check: .venv-release/.installed  ## sdist and wheel, each installed in an empty environment, where it runs a load
	.ci/release-check .venv-release/bin $(UV) $(WHEELS)

# pyproject.toml has the version. The manifests, the image and its page name images of it.
version:  ## another version: VERSION=0.3.0
	sed -i 's/^version = ".*"/version = "$(VERSION)"/' pyproject.toml
	git grep -lE 'llm-locust:[0-9]+\.[0-9]' -- k8s docs llm_locust/k8s | \
		xargs sed -Ei 's/llm-locust:[0-9]+(\.[0-9]+)+/llm-locust:$(VERSION)/'

audit: .venv-audit/.installed  ## known vulnerabilities of the locked packages
	.ci/audit .venv-audit/bin

test-e2e: $(VENV)/.test .venv-e2e/.installed .venv-litellm/.installed  ## a real server and real balancers
	tests/again.sh e2e $(BIN)/pytest tests/e2e

test-embeddings: $(VENV)/.test .venv-infinity/.installed  ## embeddings and rerank by a real server, which CI does without
	$(BIN)/pytest tests/e2e/test_embeddings.py

test-k8s: test-manifests test-pods  ## manifests against schemas; pods on podman where there is one
test-manifests: $(VENV)/.test .venv-k8s/.installed
	tests/again.sh k8s $(BIN)/pytest tests/k8s
test-pods: $(VENV)/.test .venv-k8s/.installed
	tests/pods/pods.sh tests/again.sh pods $(BIN)/pytest tests/pods

# atheris is in no lock: it has wheels for few versions of Python. Without it cases are random.
FUZZ_SECONDS ?= 60
FUZZERS ?= sse chunks frames scenario traces messages pages datasets models run-dirs
fuzz: $(VENV)/.test  ## each fuzzer for FUZZ_SECONDS; by coverage after `.venv/bin/pip install atheris`
	for target in $(FUZZERS); do \
		$(BIN)/python tests/hostile/fuzz.py $$target --seconds $(FUZZ_SECONDS) || exit 1; \
	done

# Of each property; a fault that is found is tried first from then on.
EXAMPLES ?= 1000
properties: $(VENV)/.test  ## the property tests, each with EXAMPLES examples instead of 40
	LLM_LOCUST_TEST_EXAMPLES=$(EXAMPLES) $(PYTEST) --forks 2 -m "hypothesis and not run and not e2e"

# Of these folders; the tests of a folder and those of its neighbours that run what it has for them.
COVERED := core wire metrics/stats metrics/requests
COVERING := $(COVERED:%=tests/%) tests/test_golden.py tests/hostile/test_hostile_results.py tests/hostile/test_secrecy.py \
	tests/client/test_client_ends.py tests/client/test_client_runs.py tests/figures/test_figures_errors.py \
	tests/figures/test_figures_verdict.py tests/swarm/run/test_swarm_load_checks.py \
	tests/workload/test_traces_plausible.py tests/workload/test_workload_body.py
# What judges time, what takes a minute under coverage, and what computes the figures of many runs.
UNCOVERING := tests/test_golden.py::test_every_figure_of_a_generated_run_is_what_pandas_computes \
	tests/hostile/test_hostile_results.py::test_no_answer_holds_the_event_loop \
	tests/wire/test_messages.py::test_a_stream_reads_the_same_however_it_is_split \
	tests/test_golden.py::test_every_key_of_the_summary_is_what_pandas_computes \
	tests/metrics/requests/test_metrics_throughput.py::test_the_error_of_that_rate_is_the_spread_of_the_rates_of_many_runs \
	tests/metrics/stats/test_metrics_intervals.py::test_intervals_hold_the_truth_about_as_often_as_they_say \
	tests/metrics/stats/test_metrics_intervals.py::test_of_short_runs_the_intervals_of_95_percent_hold_the_truth_in_about_as_many \
	tests/metrics/stats/test_metrics_censoring.py::test_the_bound_holds_in_99_of_100_runs
coverage: $(VENV)/.test  ## every branch of the folders COVERED is taken by their tests
	LLM_LOCUST_TEST_EXAMPLES=5 $(BIN)/coverage run -m pytest -q --hypothesis-seed 0 -m "not alone and not run" \
		$(UNCOVERING:%=--deselect %) $(COVERING)
	$(BIN)/coverage report

MUTATE_MINUTES ?= 15
mutate: $(VENV)/.test  ## do the tests notice small changes: a sample of MUTATE_MINUTES, survivors with their diff
	nice $(BIN)/python tests/mutation/mutate.py --minutes $(MUTATE_MINUTES)

bench: $(VENV)/.test  ## CPU per token and truth of the client, beside others, in one run
	$(BIN)/python bench/run.py

bench-report: $(VENV)/.test  ## how long a report of many requests takes, and how much memory
	$(BIN)/python bench/report.py

bench-compare: $(VENV)/.test  ## does compare find what changed between runs, and nothing else
	$(BIN)/python bench/compare.py

bench-coverage: $(VENV)/.test  ## how often 95 % intervals hold the truth, and relative gates err
	$(BIN)/python bench/coverage.py

bench-master: $(VENV)/.test  ## does one master keep up with 500 workers and 50,000 requests/s
	$(BIN)/python bench/master.py

SOAK_S ?= 1800
soak: $(VENV)/.test  ## memory and disk of master and workers over 30 minutes at 200 streams
	$(BIN)/python bench/soak.py --seconds $(SOAK_S)

soak-short: $(VENV)/.test  ## the same in 2 minutes, with ten times the reports and short answers
	$(BIN)/python bench/soak.py --seconds 120 --report-interval 0.3 --rate 50 --output-tokens uniform:10,30

soak-ui: $(VENV)/.test  ## what the live view of 24 hours takes, in memory and time
	$(BIN)/python bench/soak_ui.py

LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-config \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header
requirements: .venv-uv/.installed  ## the packages of the image, the tests, the lowest versions and the audit, pinned by hash
	$(LOCK) pyproject.toml --extra otel -o k8s/requirements.txt
	printf 'setuptools>=77\nuv>=0.13\ncyclonedx-bom>=7.5\n' | $(LOCK) - -o k8s/build-requirements.txt
	echo 'setuptools>=77' | $(LOCK) pyproject.toml - --extra test -o tests/requirements.txt
	echo 'mkdocs-material>=9.7' | $(LOCK) - -o .ci/site-requirements.txt
	printf 'setuptools>=77\npackaging>=24.2\npytest>=8.3.3\nhypothesis>=6.170\ncryptography>=44\n' | \
		$(LOCK) --resolution lowest-direct pyproject.toml - --extra otel -o tests/lowest-requirements.txt
	printf 'build>=1.3\ntwine>=6.1\n' | $(LOCK) - -o .ci/release-requirements.txt
	echo 'pip-audit>=2.10' | $(LOCK) - -o .ci/audit-requirements.txt

clean:  ## everything that was made, but runs/
	rm -rf $(VENV) .venv-lowest .venv-audit .venv-release .venv-docs .venv-e2e .venv-infinity .venv-litellm .venv-k8s .venv-uv build dist *.egg-info bench/build

.venv-uv/.installed:
	python3 -m venv .venv-uv
	.venv-uv/bin/pip install --quiet --disable-pip-version-check 'uv>=0.9'
	touch $@

$(VENV)/.runtime: pyproject.toml setup.py llm_locust/client/_reader.c | .venv-uv/.installed
	$(ENVIRONMENT) --python $(PYTHON) $(VENV)
	$(INSTALL) $(VENV) -e .
	touch $@

# Locked and by hash: what the tests ran with yesterday is what they run with today.
$(VENV)/.test: tests/requirements.txt pyproject.toml setup.py llm_locust/client/_reader.c | .venv-uv/.installed
	$(ENVIRONMENT) --python $(PYTHON) $(VENV)
	$(INSTALL) $(VENV) --no-deps --require-hashes -r $<
	$(INSTALL) $(VENV) --no-deps --no-build-isolation -e .
	touch $(VENV)/.runtime $@

# Of the lowest Python: later ones have no wheels of these versions.
LOWEST_PYTHON ?= $(firstword $(wildcard /usr/bin/python3.11) python3.11)
.venv-lowest/.installed: tests/lowest-requirements.txt pyproject.toml setup.py llm_locust/client/_reader.c | .venv-uv/.installed
	$(ENVIRONMENT) --python $(LOWEST_PYTHON) .venv-lowest
	$(INSTALL) .venv-lowest --no-deps --require-hashes -r $<
	$(INSTALL) .venv-lowest --no-deps --no-build-isolation -e .
	touch $@

.venv-audit/.installed: .ci/audit-requirements.txt
.venv-release/.installed: .ci/release-requirements.txt
.venv-docs/.installed: .ci/site-requirements.txt
.venv-audit/.installed .venv-release/.installed .venv-docs/.installed: | .venv-uv/.installed
	$(ENVIRONMENT) --python $(PYTHON) $(@D)
	$(INSTALL) $(@D) --no-deps --require-hashes -r $<
	touch $@

# torch first: with a CPU build there, nothing pulls the CUDA one. pip, as a CPU build may lie on its own disk.
# Of agentperf-local only the recorded tasks are read; its program needs Python 3.12.
.venv-e2e/.installed: tests/e2e/requirements.txt | .venv-uv/.installed
	$(ENVIRONMENT) --python $(PYTHON) .venv-e2e
	.venv-e2e/bin/pip install --quiet --disable-pip-version-check --no-compile torch==2.13.0
	$(INSTALL) .venv-e2e -r $<
	$(UV) pip install --quiet --no-deps --python-version 3.12 --target .venv-e2e/agentperf agentperf-local==0.3.4
	touch $@

.venv-infinity/.installed: tests/e2e/infinity-requirements.txt | .venv-uv/.installed
	$(ENVIRONMENT) --python $(PYTHON) .venv-infinity
	.venv-infinity/bin/pip install --quiet --disable-pip-version-check --no-compile torch==2.13.0
	$(INSTALL) .venv-infinity -r $<
	touch $@

# LiteLLM is apart from the servers: each pins what the other needs in another version.
.venv-litellm/.installed: tests/e2e/litellm-requirements.txt
.venv-k8s/.installed: tests/pods/requirements.txt
.venv-litellm/.installed .venv-k8s/.installed: | .venv-uv/.installed
	$(ENVIRONMENT) --python $(PYTHON) $(@D)
	$(INSTALL) $(@D) -r $<
	touch $@
