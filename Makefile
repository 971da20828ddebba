# One line per recipe; logic lives in dev/*.py. Needs only python3 (3.11 or newer) and make.
PYTHON ?= python3
BIN := .venv/bin
DOCS := .venv-docs/bin
ARGS ?=
.DEFAULT_GOAL := help
# Four on two cores: tests wait more than they compute. `ARGS=-n0` turns it off, for a debugger.
PYTEST := $(BIN)/pytest -n 4
# Tests start hundreds of children that import the same modules: compiled once is half of what they cost.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help venv demo test test-all check format lint types imports words prose threats chaos bench mutants sizes pins docs docs-serve

help: ## List the recipes
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile
.venv/stamp: pyproject.toml requirements/dev.txt requirements/uv.txt dev/make_venv.py
	$(PYTHON) dev/make_venv.py
venv: .venv/stamp ## Create or refresh .venv from the pins
.venv/demo-stamp: pyproject.toml requirements/demo.txt requirements/uv.txt dev/make_venv.py
	$(PYTHON) dev/make_venv.py demo
demo: $(if $(wildcard .venv/stamp),venv,.venv/demo-stamp) ## Run the crash demo, offline; or with a model: make demo MODEL=openai:gpt-5.2
	$(BIN)/perdure demo --auto $(if $(MODEL),--model $(MODEL)) $(ARGS)
test: venv ## Run the tests that are not slow, in parallel; some: make test ARGS="-k fence"
	$(PYTEST) -m "not slow" $(ARGS)
test-all: venv ## Run all tests, in parallel
	$(PYTEST) $(ARGS)
check: lint types imports words prose ## Before every commit: format, lint, types, imports, words, prose, threats, unit and conformance tests
	$(BIN)/python -m dev.threats --check
	$(PYTEST) -m "not slow" $(wildcard tests/unit tests/conformance) $(ARGS)
format: venv ## Format and fix what can be fixed
	$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format .
lint: venv ## Check the format and the lint rules
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
types: venv ## Check types: pyright, strict
	$(BIN)/pyright
imports: venv ## Check who imports whom
	$(BIN)/lint-imports --no-cache
words: venv ## Look for paths of this machine and registry addresses
	$(BIN)/python dev/words.py
prose: venv ## Count what breaks a rule of our English; no count may rise: make prose ARGS=--list
	$(BIN)/python dev/prose.py $(if $(filter prose,$(MAKECMDGOALS)),$(ARGS))
threats: venv ## Write THREATS.md from dev/threats/, the guards and the tests
	$(BIN)/python -m dev.threats $(if $(filter threats,$(MAKECMDGOALS)),$(ARGS))
chaos: venv ## Kill, freeze and cut a fleet off for a minute: make chaos ARGS="--seed 7 --store sqlite"
	$(BIN)/python -W ignore::UserWarning -m tests.chaos $(ARGS)
bench: venv ## Run the benchmarks
	$(BIN)/python dev/bench.py $(ARGS)
mutants: venv ## Prove that the durability tests can fail
	$(BIN)/python -m dev.mutants $(ARGS)
sizes: venv ## Print the ten longest functions and files
	$(BIN)/python dev/sizes.py $(ARGS)
pins: venv ## Rewrite requirements/ (ARGS=--upgrade for newer versions)
	$(BIN)/python dev/pins.py $(ARGS)
.venv-docs/stamp: requirements/docs.txt requirements/uv.txt dev/make_venv.py
	$(PYTHON) dev/make_venv.py docs
docs: .venv-docs/stamp ## Build the site into build/site; a warning is an error, and no network is used
	$(DOCS)/zensical build --strict --clean
docs-serve: .venv-docs/stamp ## Serve the site on this machine and rebuild it on every change
	$(DOCS)/zensical serve
