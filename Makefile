# `make demo` and `make test` need nothing but Python >= 3.11 and make; both set up .venv first.
PYTHON ?= python3
VENV   := .venv
STAMP  := $(VENV)/.setup-done

.PHONY: setup demo test lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Python >= 3.11 is needed; $(PYTHON) is $$($(PYTHON) -V). Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	# torch first and alone, so that nothing that follows can pull another build.
	$(VENV)/bin/python -m pip install -q torch==2.14.1 torchvision==0.29.1
	$(VENV)/bin/python -m pip install -q -c constraints.txt -e '.[models,demo,dev]'
	@touch $@

demo: setup
	$(VENV)/bin/rekey demo --out demo

test: setup
	$(VENV)/bin/python -m pytest -q -n auto --maxprocesses 8 --dist loadgroup

lint: setup
	$(VENV)/bin/ruff check .

clean:
	rm -rf $(VENV) demo build *.egg-info
