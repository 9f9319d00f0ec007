# Two commands matter: `make demo` and `make test`. Each sets up .venv once and says what it does.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# What users install, without tools of development and benchmarks: enough for the demos, in half of the time.
PRODUCT := $(VENV)/.product
OFFICIAL := .venv-official

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-null demo-tiny demo-pixels demo-program demo-hierarchy lab test test-all test-integration test-newest chaos check docs bench clean format

help:  ## Show what each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(STAMP)  ## Create .venv and install openhud with everything in it

$(STAMP): pyproject.toml constraints.txt
	@PYTHON=$(PYTHON) scripts/setup-venv $(VENV) all
	@touch $(PRODUCT) $(STAMP)

$(PRODUCT): pyproject.toml constraints.txt
	@PYTHON=$(PYTHON) scripts/setup-venv $(VENV) train,platform,environments
	@touch $(PRODUCT)

$(OFFICIAL)/.installed: scripts/official-client.txt
	@PYTHON=$(PYTHON) scripts/setup-official-client $(OFFICIAL)

demo: $(PRODUCT)  ## Train a pretrained language model to use a tool, and watch it get better (minutes, on a CPU)
	@$(BIN)/python examples/depot/demo.py --folder .demo

demo-null: $(PRODUCT)  ## The same demo with advantages shuffled within each group: the curve must stay flat
	@$(BIN)/python examples/depot/demo.py --folder .demo-null --shuffle-advantages

demo-tiny: $(PRODUCT)  ## Train a tiny agent from random weights, without a download (minutes, on a CPU)
	@$(BIN)/python examples/triage/demo.py --folder .demo-tiny

demo-pixels: $(PRODUCT)  ## Train a tiny policy with a vision tower to click buttons, from screenshots alone (minutes, on a CPU)
	@$(BIN)/python examples/pixels/demo.py --folder .demo-pixels

# With the machine's own Python: sandboxes run as another user, who cannot read a Python below /root. LiteLLM's newer versions
# take twice as long to import, 6 seconds of a processor at each start of the program.
demo-program: $(PRODUCT)  ## Train a pretrained model through mini-swe-agent, as it is, to do errands with files in sandboxes
	@[ -x .demo-program/tools/bin/mini ] || { /usr/bin/python3 -m venv .demo-program/tools && .demo-program/tools/bin/pip install --quiet mini-swe-agent==2.4.6 litellm==1.80.11 openai==2.8.0; }
	@PATH="$(CURDIR)/.demo-program/tools/bin:$$PATH" $(BIN)/python examples/errands/demo.py --folder .demo-program

demo-hierarchy: $(PRODUCT)  ## Train a subagent, then the orchestrator that calls it, by a recipe in stages
	@$(BIN)/python examples/hierarchy/demo.py --folder .demo-hierarchy

lab: $(STAMP)  ## Record the incident lab's 24 incidents afresh (a real shop, broken for real; about 20 minutes)
	@scripts/setup-worlds redis-server
	@$(BIN)/python -m hud_benchmarks.incident_lab.record --folder .lab

test: $(STAMP) $(OFFICIAL)/.installed  ## Run the tests on SQLite, and samples of what is slow or needs PostgreSQL (10 minutes)
	@scripts/setup-worlds
	@scripts/test-on-postgresql --store scripts/run-tests $(BIN)/python -m "not slow"

test-all: test  ## Run `make test`, then all the rest: slow tests, PostgreSQL, kernels switched off (50 minutes)
	@echo "==> the slow tests, on SQLite"
	@scripts/run-tests $(BIN)/python -m slow
	@scripts/test-on-postgresql scripts/run-tests $(BIN)/python
	@echo "==> the engine's tests and training's again, on plain PyTorch"
	@HUD_CPU_KERNELS=0 HUD_CUDA_KERNELS=0 scripts/run-tests $(BIN)/python \
		tests/engine tests/learning tests/train tests/platform/training

# Where openhud is not installed beside the package, as for vLLM's servers, the tests run in .venv.
INTEGRATION = $(if $(shell grep -s '^-e ' scripts/integrations/$(NAME).txt),.venv-integrations/$(NAME),$(VENV))

test-integration:  ## Test an integration with the real package: make test-integration NAME=trl
	@scripts/setup-integration $(NAME)
	@OMP_NUM_THREADS=1 HUD_TEST_VLLM=$${HUD_TEST_VLLM:-$(CURDIR)/.venv-integrations/vllm/bin/python} \
		$(INTEGRATION)/bin/python -m pytest tests/integrations/$(NAME)

test-newest:  ## Test an integration with the newest versions of its packages: make test-newest NAME=programs
	@scripts/setup-integration --newest $(NAME)
	@OMP_NUM_THREADS=1 HUD_TEST_NEWEST=-newest \
		$(subst /$(NAME),/$(NAME)-newest,$(INTEGRATION))/bin/python -m pytest tests/integrations/$(NAME)

chaos: $(STAMP)  ## Strike a server at work with 200 faults on SQLite and 200 on PostgreSQL; write the tables (an hour)
	@scripts/setup-worlds
	@scripts/chaos sqlite --record tests/chaos/RESULTS.md
	@scripts/chaos postgresql --record tests/chaos/RESULTS.md

check: $(STAMP)  ## Lint, format, types and import contracts
	@$(BIN)/ruff check --no-cache .  # Its cache does not see that a folder became a package.
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

docs: $(STAMP)  ## Build the documentation's site into site/; a broken link fails
	@$(BIN)/python scripts/site/commands.py
	@$(BIN)/python scripts/site/loop.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "==> site/index.html; hud up serves it at /docs"

format: $(STAMP)  ## Rewrite the code in the house format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)  ## Run the benchmarks, and make the table and the plot of benchmarks/perf/records.jsonl
	@$(BIN)/python benchmarks/perf/run_all.py; failed=$$?; $(BIN)/python benchmarks/perf/results.py; exit $$failed

clean:  ## Remove what the other targets made
	rm -rf $(VENV) $(OFFICIAL) .venv-integrations .demo .demo-null .demo-tiny .demo-pixels .demo-program .demo-hierarchy .lab dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
