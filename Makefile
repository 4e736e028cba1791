# `make demo` and `make test` are all that a newcomer needs; both make .venv first. No environment has to be active.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# One more than there are cores: tests of processes wait for a third of their time.
TEST_JOBS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) + 1 )))
# test-all runs one in ONE_IN of the thorough tests and cases, and others after each commit.
ONE_IN ?= 1
PARALLEL := -n $(TEST_JOBS) --maxprocesses 8 --dist worksteal

# Containers set PYTHONDONTWRITEBYTECODE. Without bytecode every process of the tests compiles the package again, and each
# of pytest's workers rewrites the assertions of all tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check format test-slow test-resume test-gpu test-ray test-jax test-chaos test-bench test-browser test-clients fuzz fuzz-envs bench bench-peers bench-replay bench-off-policy bench-serving bench-feedback envpool docs dist lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: ## make .venv with everything that demo and test need (again only when something changed)
	@test -n "$(PYTHON)" || { echo "Equipoise needs Python 3.11 to 3.13 and finds none; name one: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) tools/bootstrap.py $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))

demo: setup ## train an agent on CartPole-v1 until it is solved, and show it
	@$(BIN)/equipoise train CartPole-v1 --algorithm ppo --stop-at 475 --out runs/demo-$$(date +%Y%m%d-%H%M%S)

test: setup check ## the checks and the tests, without the many cases of the thorough ones
	@$(PYTEST) $(PARALLEL)

test-all: setup check ## everything that has to pass before a change is merged (CI runs it)
	@$(PYTEST) $(PARALLEL) --one-in $(ONE_IN) -m "not slow and not gpu and not ray and not jax and not chaos and not bench and not browser and not clients"

check: setup ## ruff, mypy, the floors of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-slow: setup ## thresholds over several seeds, a million rows of the ruler, long cases that CI has the like of
	@$(PYTEST) -m slow --timeout 3600

test-resume: setup ## runs killed at random moments, resumed, compared to the bit (CI: those in processes, K=process)
	@$(PYTEST) $(PARALLEL) -m chaos --timeout 900 -k "$(K)" tests/runtime/test_resume.py

test-gpu: setup ## needs a CUDA device; TORCH_INDEX=https://download.pytorch.org/whl/cu130 installs torch for it
	@$(PYTEST) -m gpu --timeout 600

test-ray: setup ## adds Ray to .venv; runs on clusters of several nodes on this machine
	@$(BIN)/python -m pip install -qq --no-compile 'ray>=2.51'
	@$(PYTEST) -m "ray and not slow" --timeout 600

# gymnax wants an older Gymnasium, Craftax another pygame than ours: so they come into an environment that sees .venv's packages.
JAX := .venv-jax
test-jax: setup ## JAX's simulators, in an environment of their own, .venv-jax (1.3 GB)
	@test -x $(JAX)/bin/python || $(BIN)/python -m venv $(JAX)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > $$($(JAX)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/over.pth
	@$(JAX)/bin/python -m pip install -qq --no-compile 'jax>=0.6' 'gymnax>=1.0' 'craftax>=1.5' 'brax>=0.14' 'playground>=0.2'
	@$(JAX)/bin/python -m pytest -m "jax and not slow" --timeout 600

test-chaos: setup ## kills, stalls and starves real processes
	@$(PYTEST) -m chaos --timeout 900

test-bench: setup ## tests that assert a figure; on a quiet machine
	@$(PYTEST) -m bench --timeout 3600

test-browser: setup ## the report and the live page in a headless Chromium, which has to be installed (Debian: apt-get install chromium)
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(BIN)/python -m pip install -qq --no-compile 'playwright>=1.50' || true
	@$(PYTEST) -m browser --timeout 300

# Tools that find more when they are newest: so they are in no lock, and in an environment of their own.
CLIENTS := .venv-clients
test-clients: setup ## asks the server by Schemathesis, tritonclient, openai and promtool, in .venv-clients; skips those that are not to be had
	@test -x $(CLIENTS)/bin/python || $(BIN)/python -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install -qq --no-compile 'schemathesis>=4' 'tritonclient[http]>=2.50' openai || true
	@$(PYTEST) -m clients --timeout 300

fuzz: setup ## drawn examples through every door, SECONDS=60 each; FUZZ='--door envs --jobs 2 --keep'
	@$(BIN)/python -m tests.outside.fuzz --seconds $(or $(SECONDS),60) $(FUZZ)

fuzz-envs: setup ## 20,000 envs drawn from a grammar: checked, trained, resumed, collected, exported, served
	@$(BIN)/python -m tests.outside.fuzz --door envs --examples 20000 --seconds 86400 --jobs 2 $(FUZZ)

bench: setup ## what the pieces cost on this machine, and the bound they give
	@$(BIN)/python benchmarks/pieces.py

PEERS_HOME ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/equipoise-peers
bench-peers: setup envpool ## ours beside the peers: builds an environment for each (11 GB), then hours; BENCH='--cases pong --rounds 1'
	@benchmarks/peers/setup.sh --home "$(PEERS_HOME)"
	@$(BIN)/python -m pip install -qq 'matplotlib>=3.9'
	@mkdir -p runs
	@$(BIN)/python benchmarks/matrix.py --peers-home "$(PEERS_HOME)" --json runs/bench-peers.json --page runs/bench-peers.md $(BENCH)

bench-replay: setup ## rows/s of the replay beside cpprb, Stable-Baselines3 and TorchRL; BENCH='--rounds 1'
	@benchmarks/peers/setup.sh --home "$(PEERS_HOME)" cpprb sb3 torchrl
	@mkdir -p runs
	@$(BIN)/python benchmarks/replay.py --peers-home "$(PEERS_HOME)" --json runs/bench-replay.json --page runs/bench-replay.md $(BENCH)

bench-off-policy: setup ## SAC and DQN beside Stable-Baselines3, about an hour; BENCH='--cases sac --rounds 1'
	@benchmarks/peers/setup.sh --home "$(PEERS_HOME)" sb3
	@mkdir -p runs
	@$(BIN)/python benchmarks/off_policy.py --peers-home "$(PEERS_HOME)" --json runs/bench-off-policy.json --page runs/bench-off-policy.md $(BENCH)

bench-serving: setup ## our server beside LitServe, Ray Serve and a bare Starlette endpoint, about an hour; BENCH='--rounds 1'
	@benchmarks/peers/setup.sh --home "$(PEERS_HOME)" litserve rayserve
	@mkdir -p runs
	@$(BIN)/python benchmarks/serving.py --peers-home "$(PEERS_HOME)" --json runs/bench-serving.json --page runs/bench-serving.md $(BENCH)

bench-feedback: setup ## preferences beside the package imitation, TRL and a bare endpoint, in ratios, half an hour
	@benchmarks/peers/setup.sh --home "$(PEERS_HOME)" imitation trl
	@$(BIN)/python benchmarks/feedback.py imitation --python "$(PEERS_HOME)/imitation/bin/python"
	@PYTHONPATH=src "$(PEERS_HOME)/trl/bin/python" benchmarks/dpo.py --steps 3 --pairs 8
	@$(BIN)/python benchmarks/feedback.py speed
	@$(BIN)/python benchmarks/feedback.py labels
	@$(BIN)/python benchmarks/feedback_page.py

envpool: setup ## add EnvPool to .venv, so that its tests are not skipped (Linux; 320 MB to fetch)
	@$(BIN)/python -m pip install -qq --no-compile 'envpool==1.2.5'

docs: setup ## the documentation as a site in build/docs; warnings and dead inner links are errors
	@$(BIN)/python tools/build_docs.py

dist: setup ## a wheel and an sdist in dist/, for an environment of your own
	@rm -rf dist build
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@ls dist

lock: setup ## write requirements.lock anew; UPGRADE=1 takes the newest versions
	@$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

clean: ## remove what was built; runs/ stays
	rm -rf .venv .venv-jax .venv-clients build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
