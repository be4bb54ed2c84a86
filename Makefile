# Everything happens in a virtual environment of its own, .venv; nothing is installed elsewhere.
#
#   PYTHON       the interpreter to build it with (3.11 or newer)
#   TORCH_INDEX  where torch comes from, if not the default index. PyPI's torch brings CUDA along (gigabytes);
#                for a machine without a GPU: make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
#   DEMO_ARGS    passed to `clawrl demo`, see `clawrl demo --help`
#   BENCH_ARGS   passed to the bench, see the --help of its program
#   CHAOS_ARGS   passed to the chaos run, see `python -m tests.chaos --help`
#   ENGINE       sglang: the demo runs on SGLang instead of the embedded engine
#   SGLANG_CPU   the environment in which SGLang runs on CPUs, kept for all clones of a user

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
CHAOS_ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
TORCH := $(shell grep '^torch==' constraints.txt)
ENGINE ?= transformers
DEMO_FILE := deployments/$(if $(filter sglang,$(ENGINE)),laptop-sglang,laptop).yaml

# SGLang pins other versions than ours, so that it has an environment of its own: three gigabytes, three minutes. It is
# named after what it is made of. Where the CPU has no AVX-512, SGLang does not run and its tests say so.
SGLANG_SOURCE := integrations/sglang_cpu
SGLANG_FILES := $(sort $(shell find $(SGLANG_SOURCE) -type f ! -name '*.md' ! -name '*.pyc'))
SGLANG_CPU := $(or $(SGLANG_CPU),$(or $(CLAWRL_CACHE),$(HOME)/.cache/clawrl)/sglang-cpu-$(shell cat $(SGLANG_FILES) | sha256sum | cut -c1-12))
SGLANG_RUNS := $(shell grep -qm1 avx512f /proc/cpuinfo 2>/dev/null && echo yes)
SGLANG_PIP := $(SGLANG_CPU)/bin/python -m pip install --disable-pip-version-check --quiet
export CLAWRL_SGLANG_PYTHON ?= $(SGLANG_CPU)/bin/python

export RAY_USAGE_STATS_ENABLED ?= 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test test-nightly test-agents chaos sglang-cpu bench-ingress bench-metrics bench-publish \
	bench-train bench-sessions bench-learning bench-collapse lint format reference docs docs-serve clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

install: $(VENV)/.installed ## clawrl and what it needs, into .venv

# Only what a command needs: the demo on the embedded engine needs no SGLang.
demo: $(VENV)/.installed-demo $(if $(filter sglang,$(ENGINE)),$(SGLANG_CPU)/.installed) ## simulated users talk to the graph; shows what it learned
	$(BIN)/clawrl demo --deployment $(DEMO_FILE) $(DEMO_ARGS)

# Three at once: fetching SGLang's environment takes minutes.
test: ## lint, types and the whole test suite but the nightly part
	@$(MAKE) --no-print-directory -j3 .before-tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone and not nightly"
	$(BIN)/python -m pytest -m "alone and not nightly"

.PHONY: .before-tests
.before-tests: lint .chromium $(if $(SGLANG_RUNS),$(SGLANG_CPU)/.installed)

test-nightly: $(VENV)/.installed-test .chromium $(if $(SGLANG_RUNS),$(SGLANG_CPU)/.installed) ## the tests that take minutes
	$(BIN)/python -m pytest -m nightly --timeout 1800

test-agents: $(VENV)/.installed-test ## OpenClaw, Codex and Claude Code, fetched by npm (over a gigabyte); part of test-nightly
	$(BIN)/python -m pytest -m agents

chaos: $(VENV)/.installed-test ## 200 kills at random under traffic, then an audit of every turn; up to an hour
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

bench-ingress: $(VENV)/.installed-demo $(VENV)-litellm/.installed ## the HTTP side against a bare engine and other gateways
	$(BIN)/python -m bench.ingress --litellm $(VENV)-litellm/bin/litellm $(BENCH_ARGS)

bench-metrics: $(VENV)/.installed-demo ## what metrics cost: requests per second with them and without, interleaved
	$(BIN)/python -m bench.metrics $(BENCH_ARGS)

bench-publish: $(VENV)/.installed $(if $(SGLANG_RUNS),$(SGLANG_CPU)/.installed) ## what new weights cost the answers in flight, by transport
	$(BIN)/python -m bench.publish $(BENCH_ARGS)

bench-train: $(VENV)/.installed-test $(VENV)-trl/.installed ## what a training step costs beside TRL's and a plain loop's
	$(BIN)/python -m bench.train --trl $(VENV)-trl/bin/python $(BENCH_ARGS)

bench-sessions: $(VENV)/.installed ## what sharing saves: BENCH_ARGS="--ledger FILE" or "--recordings FOLDER"
	$(BIN)/python -m bench.sessions $(BENCH_ARGS)

sglang-cpu: $(SGLANG_CPU)/.installed ## the environment in which SGLang runs on this CPU
	@echo "CLAWRL_SGLANG_PYTHON=$(SGLANG_CPU)/bin/python"

bench-learning: $(VENV)/.installed-demo ## every method on every preference, for hours; BENCH_ARGS=--quick for minutes
	$(BIN)/python bench/learning.py $(BENCH_ARGS)

bench-collapse: $(VENV)/.installed-demo ## 200 updates past the moment the preference holds: does it stay sound? Hours
	$(BIN)/python bench/learning.py --methods combine_topk --preferences one_sentence --seeds 0 --past 200 --time-limit 9000 \
		$(BENCH_ARGS)

# In an environment of its own, since its proxy pins what the ingress uses in other versions. Not the newest: its proxy
# also pins packages that mirrors of PyPI get late.
LITELLM_PROXY := litellm[proxy]==1.108.0
$(VENV)-litellm/.installed:
	$(PYTHON) -m venv $(VENV)-litellm
	$(VENV)-litellm/bin/python -m pip install --disable-pip-version-check --quiet '$(LITELLM_PROXY)'
	@touch $@

# In an environment of its own, since clawrl has no use for it; with our torch and transformers, so that the trainers differ
# and what is below them does not.
TRL := trl==1.16.0
$(VENV)-trl/.installed: constraints.txt | $(VENV)/.made
	$(PYTHON) -m venv $(VENV)-trl
	$(VENV)-trl/bin/python -m pip install --disable-pip-version-check --quiet \
		$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(VENV)-trl/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt '$(TRL)'
	@touch $@

$(SGLANG_CPU)/.installed: | $(VENV)/.made
	rm -rf $(SGLANG_CPU)
	$(PYTHON) -m venv $(SGLANG_CPU)
	$(SGLANG_PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $$(grep '^torch==' $(SGLANG_SOURCE)/requirements.txt)
	$(SGLANG_PIP) -r $(SGLANG_SOURCE)/requirements.txt
	$(SGLANG_PIP) --no-deps -r $(SGLANG_SOURCE)/requirements-no-deps.txt
	cp -r $(SGLANG_SOURCE)/stand_ins/. "$$($(SGLANG_CPU)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@touch $@

lint: $(VENV)/.installed-test ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-test ## rewrite the code the way that lint wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: $(VENV)/.installed ## every setting anew into docs/configuration.md, after one changed
	$(BIN)/python -m clawrl.config_reference docs/configuration.md

docs: $(VENV)/.installed-docs ## the documentation as a site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-docs ## the same at http://127.0.0.1:8001, anew whenever a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

clean: ## remove caches and the demo's output; .venv and bench-output stay
	rm -rf demo-output test-artefacts site build dist clawrl.egg-info .mypy_cache .pytest_cache .ruff_cache
	find clawrl tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says that a step is done for these versions; a second `make` then does nothing.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "clawrl needs Python 3.11 or newer; name one with: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(MAKE) --no-print-directory .python3-venv
	$(PYTHON) -m venv $(VENV)
	@touch $@

.PHONY: .python3-venv
.python3-venv:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "The Debian package python3-venv is missing; installing it with apt-get."; \
		apt-get update -qq && apt-get install -y -qq python3-venv; \
	else \
		echo "The module venv is missing. Install it first: sudo apt-get install python3-venv" >&2; exit 1; \
	fi

# The console's tests drive a real browser, and without one they are skipped. After python3-venv: apt-get works for one at
# a time. Where it cannot be had the other tests run all the same.
.PHONY: .chromium
.chromium: | $(VENV)/.made
	@if [ -n "$$CLAWRL_CHROMIUM" ] || { command -v chromium || command -v google-chrome; } >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Chromium is missing; installing Debian's with apt-get for the console's tests."; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 chromium \
			fonts-dejavu-core >/dev/null || echo "Chromium could not be installed; the console's tests are skipped." >&2; \
	else \
		echo "Chromium is missing; the console's tests are skipped. To have them: sudo apt-get install chromium" >&2; \
	fi

# First and alone: whatever asks for torch later finds this one and pulls in no other build.
$(VENV)/.torch: constraints.txt | $(VENV)/.made
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@touch $@

$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt $(VENV)/.torch
	$(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[demo,docs,test]'
	@touch $@
