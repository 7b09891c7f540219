# make demo       install, and train on handwritten digits for half a minute; no download
# make test       lint, types, and the tests of less than half a second
# make test-fast  only tests of less than 0.07 seconds
# make test-long  the tests that make test leaves out: trainings, notebooks, killed runs, pages in a browser
# make durations  measure how long each test takes, which decides where it runs: tests/durations.json
# make cifar10    the 10-minute CIFAR-10 run (DATA=folder for images of your own)
# make bench      measure speed: five libraries, the data path, Lightning against a bare loop
# make reproduce  measure the stated numbers that are out of date, part by part (PART="heads digits", DATA=folder);
#                 python benchmarks/reproduce.py --list shows the parts, their minutes and their state
# make notebook   open the notebooks in Jupyter
# make site       build the pages, the notebooks and an API reference as a site in build/site
# make lint       ruff, and fix what it can
# Each makes .venv first if it is missing, and repairs it if an install was interrupted or pyproject.toml changed.

VENV := .venv
BIN := $(VENV)/bin
SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13 python3.14; do \
	$$p -c '$(SUITABLE)' 2>/dev/null && command -v $$p && break; done)

# All cores, a thread each. Compiled modules are kept even where the environment forbids it: without them each process
# compiles all tests again. A text file that vit opens without saying its encoding is an error.
PYTEST = PYTHONDONTWRITEBYTECODE= PYTHONWARNDEFAULTENCODING=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

.PHONY: demo test test-long test-fast durations cifar10 bench reproduce notebook site lint
.DELETE_ON_ERROR:

demo: $(VENV)/installed-train
	$(BIN)/python train.py fit --config configs/digits.yaml

test: $(VENV)/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -m "not long"

test-fast: $(VENV)/installed-test
	$(PYTEST) -m "not medium"

test-long: $(VENV)/installed-test
	$(PYTEST) -m long

durations: $(VENV)/installed-test
	$(PYTEST) --measure

cifar10: $(VENV)/installed-train
	$(BIN)/python train.py fit --config configs/cifar10_quick.yaml $(if $(DATA),--data ImageFolder --data.root $(DATA))

bench: $(VENV)/installed-test
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/pipeline.py --sources memory files
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/results_page.py
	$(BIN)/python benchmarks/pages.py

# Goes on after an interrupt. Results name a commit, so that there must be no changes that are not committed.
reproduce: $(VENV)/installed-test
	$(BIN)/python benchmarks/reproduce.py $(PART) $(if $(DATA),--data $(DATA))

notebook: $(VENV)/installed-notebook
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/attention_from_scratch.ipynb

site: $(VENV)/installed-site
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs/site . build/site
	@echo build/site/index.html

lint: $(VENV)/installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The file "unfinished" is there while pip works: where it is found at the start, pip was interrupted, and what
# it left may look installed without being whole, so the environment is made anew.
$(VENV)/installed-%: pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: no Python 3.11 to 3.14 found: install one, or name it by make PYTHON=/path/to/python" >&2; exit 1; fi
	@if [ -e $(VENV)/unfinished ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); fi
	@touch $(VENV)/unfinished
	@echo "installing (PyTorch is large: a minute or two on a fast network)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@rm $(VENV)/unfinished
	@touch $@
