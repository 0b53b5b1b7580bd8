# make demo      a convolutional network learns handwritten digits on this machine's default device
# make test      the whole suite
# make tune      finds the numbers in mpsgrad/tunables for this machine's default device
# make sanitize  every kernel on an NVIDIA GPU under compute-sanitizer, which comes with NVIDIA's CUDA toolkit
# make bench     every op beside PyTorch (pip install '.[bench]' adds it), as a table and JSON
# make docs      docs/metal-stdlib.md from the tests on this machine's devices, COVERAGE.md and docs/porting.md from Apple's names,
#                and of all pages a static site: site/index.html
# make nightly   the long runs: random programs, malformed source, all widths, float16 of GPUs on CPUs, registers of GPUs, the
#                kernels of CPUs with AVX-512 on any, and kernels of CPUs on memory with pages around it that fault
# Each makes its own virtual environment in .venv; PYTHON names the interpreter, VENV an environment to use instead.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test nightly bench tune docs sanitize lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/mpsgrad train digits

# Two processes with threads for NumPy's products spin in wait for each other's.
test nightly: export OMP_NUM_THREADS = 1
# The processes that tests start find the package's modules compiled, wherever this is set.
test nightly: export PYTHONDONTWRITEBYTECODE =

# The tests of a file run in one process, so that two do not compile the same kernels at the same time.
test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

nightly: $(VENV)/.installed
	MPSGRAD_HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n 2 --dist loadfile -m nightly
	MPSGRAD_TEST_GPU_HALVES=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/kernels -k "GPU or OneThread or convolution_tiles or convolution_winograd"
	PYTHONPATH=tests $(BIN)/python -m pytest -n 2 --dist loadfile -p large_cpu tests/kernels
	for guard in end front; do \
	  PYTHONPATH=tests MPSGRAD_GUARD=$$guard $(BIN)/python -m pytest -n 2 --dist loadfile -p guard_pages tests/kernels \
	    || exit 1; \
	done

docs: $(VENV)/.installed
	$(BIN)/python tests/msl/metal_table.py
	$(BIN)/python tests/mps/apple_pages.py
	$(BIN)/python docs/draw_families.py
	$(BIN)/python docs/build_site.py site

bench: $(VENV)/.installed
	$(BIN)/python -m bench

tune: $(VENV)/.installed
	$(BIN)/python -m bench.tune

sanitize: $(VENV)/.installed
	$(BIN)/python -m pip install -q -e '.[cuda]'
	$(BIN)/python tests/sanitize_cuda.py

lint: $(VENV)/.installed
	$(BIN)/python -m pip install -q ruff mypy
	$(BIN)/ruff check mpsgrad tests bench examples docs
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -e '.[test]'
	touch $@

clean:
	rm -rf .venv build dist runs site
