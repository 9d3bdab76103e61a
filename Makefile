# Each target needs `make` and `python3` and nothing else: the first one run creates .venv from pinned constraints.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS ?= train,text,study,ray,flower,privacy

.PHONY: help demo test check style bench docs clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

# Modules are compiled when they are first imported: most of them never are.
.venv/ready: pyproject.toml constraints.txt setup.py $(wildcard src/cyber0/*/_*.[ch])
	@echo "Setting up .venv (once; a minute or two) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cyber0 needs Python 3.11 or newer")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt pip setuptools
	@$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt --no-build-isolation \
		-e '.[$(EXTRAS)]' --group dev
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps byzfl==0.0.11  # a reference in tests
	@touch $@

demo: .venv/ready  ## a federation with liars on embedded digits: a mean and a robust rule, side by side
	@$(BIN)/cyber0 demo

check: style  ## ruff, pyright (strict), import-linter
	@$(BIN)/basedpyright --level error

style: .venv/ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache

# Types are checked beside the tests. One thread each: a busy machine is slow then, not stuck, and workers are forked from
# one process that has collected the tests. Modules are compiled once, even where PYTHONDONTWRITEBYTECODE is set, and not
# by each of the many processes.
test: style  ## everything CI runs: check, all tests, doctests and documentation snippets
	@types=$$(mktemp); $(BIN)/basedpyright --level error >$$types 2>&1 & checker=$$!; \
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder --durations=20; status=$$?; \
	wait $$checker || { cat $$types; status=1; }; \
	rm -f $$types; exit $$status

bench: .venv/ready  ## measure speed as ratios to a peer in the same run; writes benchmarks/results/
	@$(BIN)/python -m benchmarks

docs: .venv/ready  ## build the documentation into site/
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --group docs
	@$(BIN)/python scripts/generate_reference.py
	@$(BIN)/python scripts/notebooks.py --pages
	@$(BIN)/zensical build --clean
	@$(BIN)/python scripts/complete_site.py
	@echo "Look at it: $(BIN)/python -m http.server --directory site 8000, then http://127.0.0.1:8000 (search needs HTTP)"

clean:  ## remove the environment and everything built
	rm -rf .venv build dist site src/*.egg-info src/cyber0/*/*.so
