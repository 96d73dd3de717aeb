# Every target sets up first; set-up does nothing when nothing has changed.
#   TORCH=auto|cpu|cuda   which build of PyTorch (default auto: CUDA with an NVIDIA GPU, else CPU)
#   PYTHON=/path/to/python   the interpreter to make .venv with

.DEFAULT_GOAL := help
SHELL := /bin/sh
BIN := .venv/bin
CODE := packages tests scripts examples benchmarks
# A process for each core, each with one thread for arithmetic.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

export TORCH ?= auto
export PYTHON ?=
# Where it is set, the libraries in .venv would be compiled again at each start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup test check lint format demo clean

help: ## show this list
	@sed -n 's/^\([a-z][a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## create .venv: locked packages, and a PyTorch that fits this machine
	@$(or $(PYTHON),python3) scripts/setup.py

test: setup ## the whole test suite
	@$(PYTEST)

check: lint ## the fast part: linters, types, import rules, and the tests that take seconds
	@$(PYTEST) -m "not slow and not gpu" --hypothesis-profile quick

lint: setup ## formatting, lint, types and import rules
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy $(CODE)
	@$(BIN)/lint-imports

format: setup ## reformat the code and repair what the linter can
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

demo: setup ## train SmolLM2-135M to use a real MCP server, and print what it gained
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/art-mcp train "uvx mcp-server-time" --model smollm2-135m --out runs/demo

clean: ## remove .venv and what the tools leave behind; runs and the model cache stay
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
