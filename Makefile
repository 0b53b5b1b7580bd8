# make demo    a convolutional network learns handwritten digits on this machine's default device
# make test    the whole suite
# make tune    finds the numbers in mpsgrad/tunables for this machine's default device
# make bench   every op beside PyTorch (pip install '.[bench]' adds it), as a table and JSON
# Each makes its own virtual environment in .venv; PYTHON names the interpreter, VENV an environment to use instead.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test bench tune lint clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/mpsgrad train digits

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/.installed
	$(BIN)/python -m bench

tune: $(VENV)/.installed
	$(BIN)/python -m bench.tune

lint: $(VENV)/.installed
	$(BIN)/python -m pip install -q ruff mypy
	$(BIN)/ruff check mpsgrad tests bench
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -e '.[test]'
	touch $@

clean:
	rm -rf .venv build dist runs
