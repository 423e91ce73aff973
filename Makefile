# Every target makes its own environment: .venv, and in it one stamp file for each extra installed.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -q --disable-pip-version-check -c constraints.txt

.PHONY: help demo test fuzz test-browser lint bench report figures docs clean

help:
	@echo "make demo   SGD against S-SGD on a toy, in two minutes: two tables and demo.png"
	@echo "make test   the tests"
	@echo "make fuzz   20,000 random sequences of calls against an oracle, or as many as SSGD_FUZZ says"
	@echo "make test-browser  the page of results in Chromium, which it installs on Debian"
	@echo "make lint   ruff and mypy"
	@echo "make bench  what a step of the optimizer costs"
	@echo "make report  docs/report.html and its picture, from results/"
	@echo "make figures  the numbers and figures of README and docs, from results/ and benchmarks/results/"
	@echo "make docs   the documentation, into site/"
	@echo "make clean  remove what the other targets made, .venv too"

demo: $(VENV)/.demo
	$(PY) -m ssgd.demo

test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --ignore tests/browser tests  # two processes of one thread each: more would wait for each other
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2 tests/test_kernels.py tests/test_convolutions.py tests/test_ctc_kernels.py  # before anything loads Triton

fuzz: $(VENV)/.test
	SSGD_FUZZ=$${SSGD_FUZZ:-20000} OMP_NUM_THREADS=1 $(PY) -m pytest -q -s tests/test_fuzz.py

test-browser: $(VENV)/.test
	scripts/install_chromium.sh
	$(PY) -m pytest tests/browser

lint: $(VENV)/.lint
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

bench: $(VENV)/.bench
	$(PY) benchmarks/optimizer.py --out build/optimizer-cpu.json

report: $(VENV)/.test
	scripts/install_chromium.sh
	$(PY) -m ssgd report --results results --out docs/report.html
	$(PY) -m tests.browser.photograph docs/report.html docs/report.png

figures: $(VENV)/.test
	$(PY) scripts/fill_numbers.py
	$(PY) scripts/draw_figures.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site demo*.png .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks scripts examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Torch goes in first and alone: resolved with the rest, another build could come along.
$(VENV)/.torch: constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	@touch $@

# For tests alone, without what they ask for besides, which would bring another torch along: an oracle for the Hessian,
# and Triton, whose interpreter runs our kernels without a GPU.
ALONE := curvlinops-for-pytorch einops einconv linear_operator $(if $(filter Linux,$(shell uname -s)),triton)
$(VENV)/.test: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) -e '.[test]'
	$(PIP) --no-deps $(ALONE)
	$(PY) scripts/check_torch.py
	@touch $@

# Pins that still fit stay; LOCK=--upgrade takes the newest of all but torch, which is one for every Python: TORCH=2.14.1.
TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)
.PHONY: lock
lock:
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check uv
	printf '%s\n' torch==$(TORCH) $(ALONE) | $(VENV)/bin/uv pip compile -q pyproject.toml - --extra dev --universal --python-version 3.10 --no-annotate --custom-compile-command "make lock" $(LOCK) --output-file constraints.txt

$(VENV)/.%: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) -e '.[$*]'
	$(PY) scripts/check_torch.py
	@touch $@
