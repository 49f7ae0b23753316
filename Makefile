# The commands of this project. CONTRIBUTING.md explains them, and .ci/run calls them.
# make, and not nox: machines with a C++ compiler have it, and it runs README's environment instead of making others.

BIN ?= .venv/bin
# Of `make versions`: the oldest and the newest PyTorch that have been tested, and the tests.
TORCH ?= 2.11.0 2.15.0
TESTS ?= tests/torch tests/models tests/operators tests/onnx tests/examples
CUDA = $(shell find kernels_cu cupyops/compile/names cupyops/simulator/hardware -name '*.cu' -o -name '*.cuh')
# Of `make compile`: the architectures, by default all. One of each generation decides each condition of the sources.
ARCH ?=
RESULTS = benchmarks/results
ROWS := $(RESULTS)/rows-nvidia-h200.json

.DEFAULT_GOAL = help
.PHONY: help setup hooks test thorough versions lint format types compile docs figures record package notebooks size ci

help: ## print this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile

setup: ## make the environment .venv, at the versions of constraints.txt
	python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e '.[cuda12,examples,onnx,test,dev]'

hooks: ## have git run ruff and clang-format on each commit
	$(BIN)/pre-commit install

test: ## run the tests of README.md
	$(BIN)/python -m pytest -n auto

thorough: compile ## run the other tests (all dtypes, all pairs, planted faults, random trials, figures), and compile
	$(BIN)/python -m pytest -m thorough -n auto

versions: ## run TESTS with other versions of PyTorch, TORCH="2.11.0 2.15.0", each in an environment in build/
	for version in $(TORCH); do \
	    made=build/torch-$$version; \
	    python3 -m venv $$made && grep -v -e ^torch -e ^setuptools= constraints.txt > $$made/constraints.txt && \
	    $$made/bin/pip install -q -c $$made/constraints.txt torch==$$version -e '.[cuda12,examples,onnx,test]' && \
	    $$made/bin/python -m pytest -n auto $(TESTS) || exit 1; \
	done

lint: ## check style, format, imports, and what pages say of the source; change nothing
	$(BIN)/python -m tests.project.forms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CUDA)

format: ## format Python and CUDA C++
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CUDA)

types: ## check types
	$(BIN)/mypy

compile: ## compile every kernel for every architecture, or for ARCH="75,90"; fail on a warning, or a spill on sm_90
	$(BIN)/python -m cupyops compile $(if $(ARCH),--arch $(ARCH))

docs: ## build the documentation site into site/; fail on a warning, such as a broken link
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

figures: ## draw the figures of README.md and docs/ from benchmarks/results
	$(BIN)/python -m benchmarks --from $(RESULTS)/nvidia-h200.json --plots docs/plots --table all --into docs/benchmarks.md
	$(BIN)/python -m benchmarks --from $(RESULTS)/own-ops.json --table all --into docs/examples.md
	$(if $(wildcard $(ROWS)),$(BIN)/python -m benchmarks --from $(ROWS) --plots docs/plots --table rows --into docs/benchmarks_rows.md)
	$(BIN)/python -m benchmarks.row_picture
	$(BIN)/python -m benchmarks.untuned
	$(BIN)/python -m benchmarks.tutorial_plots
	$(BIN)/python -m benchmarks.front_plots
	$(BIN)/python -m benchmarks.guide_pictures
	$(BIN)/python -m benchmarks.lltm --from $(RESULTS)/lltm-nvidia-h200.json --into docs/lltm.md
	$(BIN)/python -m benchmarks --ops models --from $(RESULTS)/models-nvidia-h200.json --into docs/benchmarks_models.md --plot docs/plots/models.svg
	$(BIN)/python -m benchmarks --ops models --from $(RESULTS)/models-nvidia-h200.json --table short --into docs/models.md
	$(BIN)/python -m benchmarks.models.more --from $(RESULTS)/more-nvidia-h200.json --into docs/benchmarks_models.md
	$(BIN)/python -m benchmarks.graphs --from $(RESULTS)/graphs-nvidia-h200.json --into docs/benchmarks_models.md
	$(BIN)/python -m benchmarks --ops scale --from $(RESULTS)/scale-nvidia-h200.json --into docs/scale.md

record: ## run the tests and compute-sanitizer on a GPU, and record the runs
	$(BIN)/python -m tests.gpu.gpu_record

package: ## build sdist and wheel into dist/, and check them; needs the extra release
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m check_wheel_contents dist/*.whl

notebooks: ## run the notebooks, and keep their outputs
	$(BIN)/python -m notebooks

size: ## count the lines of code and of words by folder, and the bytes of the pages
	$(BIN)/python -m tests.project.size

ci: ## do what continuous integration does, in a new .venv
	bash .ci/run
