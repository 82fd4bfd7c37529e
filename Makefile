# make demo     set everything up, compare the built-in models, leave a report in ./report
# make test     the same environment, the whole test suite
# make sweeps   hostile inputs by the hundred, and other tests too long for make test
# make gpu      what one GPU shows, in eight minutes, beside its limits and targets; and its tests
# make triton   the kernels of GPUs in Triton's interpreter (brings 300 MB)
# make torchtitan  models of ours in its trainer, two processes (brings 300 MB)
# make oldest   the suite on the lowest versions of all that is needed (brings gigabytes of CUDA)
# make newest   the same on the newest versions, but for torch (TORCH=2.15.0 brings gigabytes too)
# make wheel    the wheel in an empty environment, as a user installs it (brings 400 MB)
# make house    style, types, import rule, docstring rule
# make style    of it what is no test: style and types
# make studies  every study in its fast mode, held against the stored verdicts
# make docs     write docs/measures, docs/families.md and the tables of other pages anew
# make site     the documentation as pages to read in a browser, in ./site
# make clean    remove what the others made, but not the environment (make distclean: that too)

PYTHON ?= python3.11
BIN := .venv/bin/python
# What is imported is compiled then: to compile all of it at once takes half a minute.
PIP := $(BIN) -m pip --disable-pip-version-check install --quiet --no-compile \
  --constraint constraints.txt
READY := .venv/ready
# The environment of make wheel, and where its commands run: outside this folder.
WHEEL_VENV ?= .venv-wheel
# Workers of the test suite; each works with one thread. One that is done takes tests from another:
# long ones stand together, and would leave the others idle at the end.
WORKERS ?= 2
SUITE = -m pytest -n $(WORKERS) --dist worksteal -ra

.DEFAULT_GOAL := help
.PHONY: help setup demo test gpu triton torchtitan oldest newest sweeps studies wheel house style docs site clean distclean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup: $(READY)

# torch first and exactly: a looser request brings gigabytes of CUDA.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is not a Python 3.11 or later; type: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 2; }
	@echo "setting up .venv (a few minutes, once)"
	$(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0 hatchling editables
	$(PIP) --no-build-isolation --editable '.[dev,docs,eval]'
	@touch $@

demo: $(READY)
	$(BIN) -m layerlab inspect pre-norm post-norm llama --out report
	@echo "open report/report.html in a browser"

test: $(READY)
	$(BIN) $(SUITE) $(ARGS)

gpu: $(READY)
	@$(BIN) bench/gpu.py --minutes 8; bench=$$?; \
	  $(BIN) -m pytest -ra -m gpu; tests=$$?; \
	  exit $$((bench | tests))

# torch's builds for CUDA bring a triton of their own; else it lies in a folder of its own, so that
# what else is tested in this environment works without it.
.venv/triton: $(READY)
	@$(BIN) -c 'import triton' 2>/dev/null || test -d $@ || \
	  $(PIP) --no-deps --target $@ triton==3.9.0

triton: .venv/triton
	PYTHONPATH=$(CURDIR)/.venv/triton $(BIN) $(SUITE) -m 'full or not full' $(ARGS) \
	  tests/numerics/formats/triton tests/measures/support/test_flash_products.py \
	  tests/blocks/operations/test_sinkhorn.py

# torchtitan would bring other versions of what is tested here, and imports triton.
torchtitan: .venv/triton
	@test -d .venv/torchtitan || $(PIP) --no-deps --target .venv/torchtitan torchtitan==0.3.0 \
	  spmd_types==0.2.3 torch_checkpointing torchdata tyro docstring_parser typeguard
	PYTHONPATH=$(CURDIR)/.venv/torchtitan:$(CURDIR)/.venv/triton $(BIN) -m pytest -ra -m full \
	  $(ARGS) tests/model/ecosystem/test_torchtitan.py

oldest: VERSIONS := --constraint constraints-oldest.txt
newest: VERSIONS := torch==$(or $(TORCH),2.13.0)
oldest newest:
	$(PYTHON) -m venv .venv-$@
	.venv-$@/bin/python -m pip install --quiet hatchling editables
	.venv-$@/bin/python -m pip install --quiet $(VERSIONS) \
	  --no-build-isolation --editable '.[dev,docs,eval]'
	.venv-$@/bin/python $(SUITE) $(ARGS)

studies: $(READY)
	$(BIN) $(SUITE) -m study tests/studies/test_fast.py

sweeps: $(READY)
	$(BIN) $(SUITE) -m full

# Each version of transformers has its own way to hand a model its cache.
define GENERATE
import layerlab, torch
model = layerlab.build("pangu-pi", width=32, layers=2, heads=2, vocab=64, context=64)
asked = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
said = [model.generate(torch.arange(8)[None], use_cache=one, **asked) for one in (True, False)]
assert torch.equal(*said), said
endef
export GENERATE
# Only what README's first line brings, and nothing of this folder: commands run in an empty one.
wheel: $(READY)
	rm -rf $(WHEEL_VENV) && $(PYTHON) -m venv $(WHEEL_VENV)
	$(BIN) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(WHEEL_VENV)/dist .
	cd $(WHEEL_VENV) && bin/python -m pip --disable-pip-version-check install --quiet --no-compile \
	  torch==2.13.0 dist/layerlab-*.whl
	mkdir $(WHEEL_VENV)/empty && cd $(WHEEL_VENV)/empty && export PYTHONPATH= PATH="$$PWD/../bin:$$PATH" && \
	  layerlab --version && layerlab variants >/dev/null && \
	  layerlab inspect llama --measures diversity --samples 1 --context 32 --out report && \
	  test -s report/report.html && \
	  python -c 'import layerlab; assert "site-packages" in layerlab.__file__, layerlab.__file__' && \
	  python -c "$$GENERATE"
	@echo "the wheel installs and runs"

style: $(READY)
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .
	$(BIN) -m mypy

house: style
	$(BIN) -m pytest -q -m 'full or not full' tests/house/test_house.py tests/house/test_imports.py \
	  tests/house/test_unused.py tests/house/test_writes.py

docs: $(READY)
	$(BIN) docs/generate.py
	$(BIN) -m tests.families.page

# From nothing: what is kept of an earlier page knows no docstring that has changed since.
site: $(READY)
	rm -rf site .cache
	$(BIN) -m zensical build --strict
	@echo "open site/index.html in a browser"

clean:
	rm -rf report site .cache build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-oldest .venv-newest .venv-wheel
