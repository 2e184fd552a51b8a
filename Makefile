# Every target sets up what it needs first; `make setup` alone does only that.
PY := .venv/bin/python
TORCH_INDEX ?=
SHELL := /bin/bash

.PHONY: setup demo test test-all simulate lint bench browser clean help

help:            ## this list
	@awk -F ':.*## *' '/^[a-z-]+:.*##/ {printf "%-12s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:           ## .venv, Python packages, and through apt or brew what is missing of sshd, tmux, rsync, g++, git
	@TORCH_INDEX="$(TORCH_INDEX)" tools/setup.sh

demo: setup      ## the whole loop on an emulated L4: wake, send, preflight, build, 20 checks, benchmark, stop, what it costs
	.venv/bin/fcctl run phase0 --on sandbox
	@echo "The emulated machine is off. Its emulator ends by itself in 15 minutes; at once: .venv/bin/fcctl emulator --stop"

test: setup      ## all tests but the long runs of random ones
	$(PY) -m pytest -n 3 --dist loadgroup -q -m "not full"

test-all: setup  ## all tests
	$(PY) -m pytest -n 3 --dist loadgroup -q

simulate: setup  ## N random schedules of faults against the true workflows, from SEED; prints the shortest failure
	$(PY) -m tests.simulation -n $(or $(N),10000) --seed $(or $(SEED),0)

lint: setup      ## ruff, formatting, mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(PY) -m mypy

bench: setup     ## the speed table: ratios measured in one run
	$(PY) benchmarks/all.py

browser: setup   ## the dashboard and the report in a real headless Chromium
	@$(PY) -c 'import sys; from orchestrator.views.report import chromium; sys.exit(chromium.find() is None and "error: there is no Chromium; hint: apt install chromium")'
	$(PY) -m pytest -q tests/browser

clean:           ## remove the virtual environment and caches (never results/)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist
