# Needs: git, make, and Python 3.11 or newer with its venv module. Everything else is installed into .venv from
# requirements/dev.txt, whose versions and hashes are fixed. Another interpreter: make PYTHON=python3.12 test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := .venv-docs

CORES := $(shell $(PYTHON) -c "import os; print(len(getattr(os, 'sched_getaffinity', lambda _: range(os.cpu_count()))(0)))")
WORKERS ?= $(CORES)
# Tests start hundreds of processes, which would otherwise compile all modules again where bytecode is switched off.
export PYTHONDONTWRITEBYTECODE :=
# Modules are compiled when they are first imported; compiling all of them would take nearly as long as installing them.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
ifndef SEED
SEED := $(shell $(PYTHON) -c "import secrets; print(secrets.randbelow(2**32))")
endif
# Several workers on all cores: threads of linear algebra would only wait for each other.
export OPENBLAS_NUM_THREADS := 1
# glibc would keep a heap for each thread that a test starts, and on the heap ever larger blocks, once a large one has been freed:
# some 70 MiB in each worker that no test uses any more.
export MALLOC_ARENA_MAX := 1
export MALLOC_MMAP_THRESHOLD_ := 1048576
export MALLOC_TRIM_THRESHOLD_ := 16777216

.PHONY: demo test deep faults lint types unit docs package lock clean

EXAMPLE := examples/jobs.csv --cluster examples/cluster.yaml

demo: $(VENV)/ready
	@$(BIN)/gavel solve $(EXAMPLE) -p fifo -p max_min_fairness -p max_min_fairness,agnostic=true
	@$(BIN)/gavel solve $(EXAMPLE) -p max_min_fairness --rounds 1 --top 4
	@echo "Next: $(BIN)/gavel solve --help, $(BIN)/gavel policies, docs/for-operators.md"

test: lint types unit

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python .ci/lint_texts.py
	$(BIN)/pytest -q .ci/lint_house.py .ci/lint_pages.py

types: $(VENV)/ready
	$(BIN)/mypy

# CPU time beside the budgets of tests/budgets.toml; BUDGET=enforced fails above them.
BUDGET ?= printed
unit: $(VENV)/ready
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal --budget=$(BUDGET) -m "not deep or changed"

# Everything: real daemons, long plays of faults, and ten times as many examples of each property, at random. A failing example is
# printed as a line to paste above its test, and SEED=... draws all of them again. PACKAGE=slurm runs those of tests/slurm only.
# Tests on daemons wait for them most of the time, so there is one worker more than cores. Those of Slurm run on later releases too,
# where mmdebstrap and patchelf are installed.
deep: $(VENV)/ready
	@$(if $(filter-out slurm,$(PACKAGE)),,$(BIN)/python -m tests.slurm.loopback.releases)
	@echo 'Random examples of seed $(SEED)'
	$(BIN)/pytest -q -n $(shell expr $(WORKERS) + 1) --dist worksteal --budget --hypothesis-profile=deep --hypothesis-seed=$(SEED) --doctest-modules \
		$(if $(PACKAGE),tests/$(PACKAGE),tests gavel_py)

# Does a test notice each seeded fault of benchmarks/faults/? Played in a temporary copy; FAULTS="NAME ..." plays some of them.
faults: $(VENV)/ready
	$(BIN)/python benchmarks/faults/play.py $(FAULTS)

$(VENV)/ready: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'gavel-py needs Python 3.11 or newer; name one with: make PYTHON=python3.12'; exit 1; }
	@echo 'Installing gavel-py and its requirements into $(VENV), which takes a minute or two ...'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL) --require-hashes --requirement requirements/dev.txt
	@$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# The documentation site, in site/. Its tables of fields and options follow from the code.
docs: $(VENV)/ready $(DOCS)/ready
	$(BIN)/python docs/site_tables.py
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo 'The site is in site/; open site/index.html, or to search it: $(DOCS)/bin/mkdocs serve'

$(DOCS)/ready: requirements/docs.txt
	@echo 'Installing MkDocs and its plugins into $(DOCS) ...'
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python $(PIP_INSTALL) --require-hashes --requirement requirements/docs.txt
	@touch $@

# The wheel and the source distribution, in dist/, each tried in a clean environment.
package: $(VENV)/ready
	PYTHON=$(PYTHON) .ci/package

# Renews the fixed versions from pyproject.toml; needs pip-tools (pip install pip-tools). The site needs its extra only.
COMPILE := pip-compile --generate-hashes --upgrade --strip-extras --allow-unsafe --no-header --no-emit-index-url \
	--no-emit-find-links --no-emit-trusted-host
DOCS_EXTRA := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")

lock:
	$(COMPILE) --extra dev --output-file requirements/dev.txt pyproject.toml
	$(PYTHON) -c '$(DOCS_EXTRA)' | $(COMPILE) --output-file requirements/docs.txt -

clean:
	rm -rf $(VENV) $(DOCS) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
