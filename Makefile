# tandem.spark: make help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help venv demo test lint unit sanity lab rdma-lane molecule bench down clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Two virtual Sparks serving a real small model (first run 8 to 20 min, later 5; needs root)
	@tests/tools/demo.sh

test: venv ## Everything: lint, unit tests, sanity, lab suite, molecule (first run 20 to 45 min; needs root)
	@tests/tools/root.sh "make test"
	tests/lab/lab setup --tests
	@TANDEM_EVERY_TEST=1 $(MAKE) --no-print-directory lint unit sanity lab molecule

venv: ## The controller's Python environment in .venv (10 to 90 s, once)
	@tests/tools/venv.sh

lint: venv ## ruff, mypy, yamllint, ansible-lint, shellcheck (1 to 2 min)
	@echo "== lint"
	ruff check .
	mypy plugins/module_utils plugins/plugin_utils plugins/modules plugins/action plugins/filter tests/lab/sparklab
	yamllint --strict .
	ansible-lint --offline -q
	if command -v shellcheck >/dev/null; then shellcheck tests/tools/*.sh tests/lab/lab inventories/lab_*/lab .ci/run; \
	else echo "not checked: shellcheck is not installed"; fi

unit: venv ## Unit tests, packaging (under a minute; without root and rsync some are skipped)
	@echo "== unit tests"
	$(PYTHON) -m pytest tests/unit tests/test_repository.py tests/test_packaging.py -m "not gpu" -q -n 2

sanity: venv ## ansible-test sanity, with every Python from 3.9 on that is there (1 to 4 min)
	@echo "== ansible-test sanity"
	tests/tools/sanity.sh

SUITE ?= lab
lab: venv ## The lab suite: boots its own virtual Sparks (10 to 25 min; needs root). SUITE=engines: vLLM (8 to 15 min)
	@echo "== lab suite"
	@tests/tools/root.sh "make lab"
	tests/lab/lab setup
	$(PYTHON) tests/lab/assets.py all
	$(PYTHON) tests/lab/assets.py $(if $(filter engines,$(SUITE)),engines,llama)
	$(PYTHON) -m pytest tests/lab -m "$(SUITE)" -v

rdma-lane: venv ## The fabric stage on two emulated machines with soft-RoCE (6 to 12 min; needs root and QEMU)
	@echo "== RDMA lane"
	@tests/tools/root.sh "make rdma-lane"
	$(PYTHON) -P tests/lab/rdma/lane.py

molecule: venv ## Molecule scenarios of the roles on the lab (1 to 3 min; needs root)
	@echo "== molecule"
	@tests/tools/root.sh "make molecule"
	tests/lab/lab setup
	tests/tools/molecule.sh

bench: venv ## Figures as JSON lines, against the demo's lab (needs make demo before)
	$(PYTHON) tests/bench/verify.py
	$(PYTHON) tests/bench/round_trips.py
	$(PYTHON) tests/bench/replicate.py

down: ## Take the virtual Sparks away again
	@for lab in pair chain4 ring3 ring4 switch; do tests/lab/lab down $$lab; done

clean: down ## Also remove .venv, artifacts and the lab's caches in ~/.cache/tandem
	rm -rf .venv artifacts .ansible tests/output "$${TANDEM_CACHE:-$$HOME/.cache/tandem}"
