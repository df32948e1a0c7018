# Every target does its own set-up: a private .venv, nothing outside this folder
# (except Debian's chromium for the browser tests, when it is missing and we are root).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
# A machine with an NVIDIA driver gets TensorFlow with its CUDA libraries.
TF     := $(if $(shell command -v nvidia-smi 2>/dev/null),tensorflow-gpu,tensorflow)

# BACKENDS=1 adds JAX, PyTorch, Ray and Keras 2 to the tests, and what else the package meets:
# trackers, notebooks, package indexes, the documentation's site (2 GB more). `+cpu` takes PyTorch's CPU
# build where pip finds one (`pip config` or PIP_EXTRA_INDEX_URL name PyTorch's own CPU index), and
# never the several GB of its CUDA build; TORCH=torch takes what there is.
BACKENDS ?=
TORCH    ?= torch==2.13.0+cpu
READY    := $(VENV)/.installed-$(if $(filter-out 0,$(BACKENDS)),backends,test)

# Every tool that checks, builds and documents, with what it needs, at the versions in tools.txt.
TOOLS := pytest pytest-timeout pytest-rerunfailures pytest-xdist hypothesis playwright \
	pytest-cov ruff mypy vulture import-linter build twine check-wheel-contents py-rattler-build mkdocs-material \
	'mkdocstrings[python]'
LOCKED := --constraint tools.txt

# Most tests run side by side, three at a time, as they wait for two thirds of their time; then those that time
# things, by themselves. Pytest ends with 5 where it was to run no test: what PYTEST_ARGS names may all be in one of
# the two parts, but not in none.
JOBS ?= 3
# The linters run beside the first part, on what it leaves of the cores; what they said stands between the parts.
# Where nothing else is named, of the second part only the files that have such tests: collecting all takes 10 s.
TIMED = $(shell grep -rl "mark\.timed" tests --include="test_*.py")
CHECKED := $(VENV)/checks.log
define tests
	nice -n 19 $(MAKE) --no-print-directory lint >$(CHECKED) 2>&1 & checks=$$!; \
	export FORK_SERVERS_OF=$$$$; \
	$(BIN)/python -m pytest -m "not timed $(1)" --durations=20 -n $(JOBS) --dist loadfile --no-loadscope-reorder \
		$(PYTEST_ARGS); beside=$$?; \
	wait $$checks; checked=$$?; cat $(CHECKED); \
	$(BIN)/python -m pytest -m "timed $(1)" --durations=20 $(or $(PYTEST_ARGS),$(TIMED)); alone=$$?; \
	case "$$checked $$beside $$alone" in \
		"0 0 0" | "0 0 5" | "0 5 0") ;; \
		"0 5 5") echo "No test is selected by PYTEST_ARGS=$(PYTEST_ARGS)"; exit 1 ;; \
		"0 "*) exit 1 ;; \
		*) echo "The linters failed: see $(CHECKED)"; exit 1 ;; \
	esac
endef

.PHONY: demo test test-all quick bench figures matrix dist release-check docs lock ready lint schemas frontend frontend-check browser screenshots clean help

help:
	@echo "make demo      train three small runs, print the report, serve TensorBoard"
	@echo "               (DEMO_SERVE=0 make demo ends after the report)"
	@echo "make test      lint, frontend, unit, fit, TensorBoard and browser tests"
	@echo "               (BACKENDS=1 make test installs JAX, PyTorch, Ray, Keras 2 and tests them, too)"
	@echo "make test-all  the same with the minutes-long suites"
	@echo "make quick     linters, types, frontend, and the tests that train nothing: a good minute"
	@echo "make bench     what recording costs, measured here"
	@echo "make figures   the table in docs/measured.md, made of what the benchmarks saved (BENCH_ARGS=--save)"
	@echo "make matrix    the tests under other versions of Python, TensorFlow, Keras; an hour or two"
	@echo "make dist      build and check what goes to a package index"
	@echo "               (REPOSITORY_URL=https://… makes the README's links absolute there)"
	@echo "make release-check  all of a release that needs no account; docs/releasing.md has the rest"
	@echo "make docs      build the documentation's site into site/"
	@echo "make lock      take the newest development tools into tools.txt"
	@echo "make schemas   make the JSON schemas and the tab's types of the TypedDicts that declare them"
	@echo "make frontend  rebuild the tab after a change in frontend/"
	@echo "make screenshots  take the README's pictures of what make demo recorded"
	@echo "make clean     remove the virtual environments and the demo's logs"

demo: $(VENV)/.installed
	$(BIN)/python demo/train.py $(DEMO_ARGS)

test: ready
	$(call tests,and not slow)

# Folders whose tests train nothing, but for those marked `heavy`: collecting the others takes longer than these run.
QUICK = $(addprefix tests/,diagnosis plugin recording scenarios traces)

quick:
	+@$(MAKE) --no-print-directory --jobs=2 lint frontend-check
	$(BIN)/python -m pytest -m "not timed and not slow and not heavy" $(QUICK) -n $(JOBS) \
		--dist loadfile --no-loadscope-reorder -q $(PYTEST_ARGS)

test-all: ready
	$(call tests,)

# Side by side: pip, npm and apt mostly wait for their downloads; the frontend's checks need none of pip's.
ready:
	+@$(MAKE) --no-print-directory --jobs=3 $(READY) frontend-check browser

# BENCH_ARGS="step fits --save" takes some of them and keeps the figures.
bench: $(READY)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

figures: $(READY)
	$(BIN)/python -m benchmarks.table

# Installs gigabytes and takes an hour or two: MATRIX_ARGS='--only "3.11 tensorflow-2.18"' for less.
matrix:
	$(PYTHON) -m harness.versions.matrix $(MATRIX_ARGS)

REPOSITORY_URL ?=
dist: $(VENV)/bin/python
	$(PIP) install $(LOCKED) build twine check-wheel-contents
	rm -rf dist
	SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct 2>/dev/null || date +%s)" REPOSITORY_URL="$(REPOSITORY_URL)" $(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

release-check: $(VENV)/bin/python
	$(PIP) install $(LOCKED) build twine check-wheel-contents py-rattler-build
	REPOSITORY_URL="$(REPOSITORY_URL)" $(BIN)/python -m harness.release check

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lock: $(VENV)/bin/python
	$(PIP) install uv
	printf '%s\n' $(TOOLS) | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
		--no-annotate --no-emit-index-url --custom-compile-command "make lock" --output-file tools.txt -

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m harness.size
	$(BIN)/vulture
	$(BIN)/python -m harness.schemas --check

schemas: $(READY)
	$(BIN)/python -m harness.schemas

frontend: frontend/node_modules/.installed
	cd frontend && npm run build

frontend-check: frontend/node_modules/.installed
	cd frontend && npm test && npm run check-static

browser: | $(VENV)/bin/python
	$(BIN)/python harness/support/chromium.py --install

screenshots: browser $(READY)
	$(BIN)/python demo/screenshots.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: PYTHON=/path/to/python3.11 make ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"; \
		  rm -rf $(VENV); exit 1; }

# --no-compile: of TensorFlow's, JAX's and PyTorch's modules a tenth is ever imported, and compiled
# then; but only once, whatever the environment says: hundreds of processes import them.
unexport PYTHONDONTWRITEBYTECODE

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --no-compile -e ".[$(TF)]"
	@touch $@

$(VENV)/.installed-docs: pyproject.toml tools.txt | $(VENV)/bin/python
	$(PIP) install --no-compile $(LOCKED) -e ".[docs]"
	@touch $@

$(VENV)/.installed-test: pyproject.toml tools.txt | $(VENV)/bin/python
	$(PIP) install --no-compile $(LOCKED) -e ".[$(TF),test,docs]"
	@touch $(VENV)/.installed $(VENV)/.installed-docs $@

ALL := test,backends,reach,docs
$(VENV)/.installed-backends: pyproject.toml tools.txt | $(VENV)/bin/python
	$(PIP) install --no-compile $(LOCKED) -e ".[$(TF),$(ALL)]" "$(TORCH)" || { \
		echo "Not installed with $(TORCH); without it, the tests of PyTorch will be skipped."; \
		$(PIP) install --no-compile $(LOCKED) -e ".[$(TF),$(ALL)]"; }
	@touch $(VENV)/.installed $(VENV)/.installed-docs $(VENV)/.installed-test $@

frontend/node_modules/.installed: frontend/package-lock.json
	@command -v npm >/dev/null || \
		{ echo "Node 20 or newer is needed to check the frontend: https://nodejs.org"; exit 1; }
	cd frontend && npm ci --no-audit --no-fund
	@touch $@

clean:
	rm -rf $(VENV) .venv-* frontend/node_modules demo/logs
