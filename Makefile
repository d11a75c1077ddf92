# Two commands: `make demo` and `make test`. Both set everything up first, in .venv.
# An activated environment is used instead of .venv; so is PYTHON=/path/to/python.
VENV := .venv
ACTIVE := $(or $(VIRTUAL_ENV),$(CONDA_PREFIX))
ifneq ($(ACTIVE),)
  DEFAULT_PYTHON := $(ACTIVE)/bin/python
else
  DEFAULT_PYTHON := $(VENV)/bin/python
endif
PYTHON ?= $(DEFAULT_PYTHON)
PYTEST_ARGS ?=
TESTS = quick
ZOO_ARGS ?=

.PHONY: help setup demo test test-long zoo models docs matrix matrix-short lint format clean

help:
	@echo "make demo    set up, find nuclei with the shipped weights, fine-tune and test them"
	@echo "make test    set up, lint, run the quick tests; TESTS=all: those marked slow too, as CI"
	@echo "make test-long  what damages inputs at random and runs for long, at full size; then"
	@echo "             make matrix-short"
	@echo "make zoo     every attention in two small backbones on two data sets"
	@echo "make models  the weights in mmlinattn/weights: trained, scored, in half precision"
	@echo "make docs    the site, from docs/ into build/site"
	@echo "make setup   set up only: the environment in $(VENV), or PYTHON=... to use another;"
	@echo "             MMCV=compiled compiles mmcv, MMCV_CUDA=1 with its CUDA operators"
	@echo "make matrix  the tests in each supported environment, made in build/matrix (some GB each)"
	@echo "make matrix-short  some of the tests with the oldest and the newest torch"
	@echo "make lint | format | clean"

setup:
	@bash tools/misc/setup.sh "$(PYTHON)" "$(VENV)"

demo: setup
	@$(PYTHON) tools/misc/demo.py

# Goes on where it was. ZOO_ARGS=--costs, --only data=shapes, ...: python -m benchmarks.study --help
zoo: setup
	$(PYTHON) -m benchmarks.study zoo $(ZOO_ARGS)

# Continues an interrupted training.
models: setup
	@bash tools/misc/models.sh "$(PYTHON)"

docs: setup
	@bash tools/misc/docs.sh "$(PYTHON)"

lint: setup
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) tools/misc/check_docstrings.py

format: setup
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

# Three workers with one thread each: on two cores one of them waits for processes most of the
# time, and multi-threaded workers spin against each other.
test: lint
	@case "$(TESTS)" in quick|all) ;; *) echo "TESTS=$(TESTS): must be quick or all"; exit 2;; esac
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 3 --dist worksteal $(if $(filter quick,$(TESTS)),-m "not slow") $(PYTEST_ARGS)

# With how often each outcome came.
test-long: setup
	MMLINATTN_TEST_LONG=1 OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n 2 --dist worksteal -m long \
		-o faulthandler_timeout=7200 -rP $(PYTEST_ARGS)
	$(MAKE) matrix-short

matrix:
	python3 tools/misc/matrix.py

matrix-short:
	python3 tools/misc/matrix.py --short --pytest $(PYTEST_ARGS)

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
