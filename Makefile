# `make quickstart` trains and explains a first model, `make test` runs the suite, `make test-fast` two minutes of it, and
# `make check` lints and types.
# Each creates the environment first if it is missing or older than the files that define it.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Processes of tests import what others have compiled.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart test test-fast test-device test-oldest test-newest check format docs install clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,rivals]"
	touch $@

install: $(VENV)/.installed

quickstart: install
	$(BIN)/python benchmarks/sections.py
	@printf '%s\n' '' \
	  'On your own files: FOLDER has one sub-folder of text files per class, TEXTS text files, and each line of FILE' \
	  'the words of a document and their sections: {"tokens": [...], "labels": [...]}' \
	  '  $(BIN)/longspan train sections data.path=FILE.jsonl' \
	  '  $(BIN)/longspan train classify data.path=FOLDER' \
	  '  $(BIN)/longspan train model-text data.path=TEXTS' \
	  'Other tasks: $(BIN)/longspan recipes'

test: install
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The tests that find most mistakes per second: all but those marked slow.
test-fast: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# The fast tests with the oldest releases of what is required, and with the newest of everything. Warnings of the oldest
# releases are theirs. The tests left out need packages that demand newer ones.
EXTRAS_oldest := audio,baselines,documents,excel,export,figures,gpu,graphs,html,images,peft,serve,sklearn,summarisation,translation
PACKAGES_oldest := beartype fpdf2 httpx2 hypothesis openpyxl pandas polars pytest pytest-timeout pytest-xdist python-docx \
  python-pptx pyyaml seqeval torchmetrics
OPTIONS_oldest := -p no:anyio -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning \
  -W "ignore:Conversion of an array with ndim:DeprecationWarning" \
  --ignore tests/mixers/test_local.py --ignore tests/tasks/test_embeddings.py \
  --ignore tests/results/test_explanation_in_browser.py --ignore tests/serving/test_page_in_browser.py \
  --deselect tests/test_benchmarks.py::test_explanation_page
EXTRAS_newest := dev,rivals

test-oldest test-newest: test-%:
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --constraint constraints-$*.txt \
	  --editable ".[$(EXTRAS_$*)]" $(PACKAGES_$*)
	.venv-$*/bin/python -m pytest -n 2 --dist worksteal -m "not slow" $(OPTIONS_$*)

# Every task and mixer on a device that PyTorch takes for an accelerator, with the memory of the CPU: finds tensors that
# stay behind. Needs a compiler for C++.
test-device: install
	$(BIN)/python -m pip install --quiet ninja
	PYTHONPATH=tests/training ACCELERATE_TORCH_DEVICE=second:0 \
	  $(BIN)/python -m pytest tests/second_device/every_task_and_mixer.py

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

# Builds the site in docs/_build/html, offline, with warnings as errors, and checks its links and pages. Only scripts of
# the gallery that changed run again.
docs: $(VENV)/.docs
	$(BIN)/python docs/results.py
	$(BIN)/python docs/mechanisms.py > docs/mechanisms.md.new
	mv docs/mechanisms.md.new docs/mechanisms.md
	$(BIN)/python docs/architecture.py
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python docs/links.py docs/_build/html
	BUILT_SITE=docs/_build/html $(BIN)/python -m pytest -q tests/test_site.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info docs/_build docs/auto_gallery docs/reference/generated
