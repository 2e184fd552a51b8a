# Every target sets up what it needs first; `make setup` alone does only that.
PY := .venv/bin/python
TORCH_INDEX ?=
SHELL := /bin/bash

# Tests wait for processes, links and clocks more than they compute.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 3 )))
PYTEST := $(PY) -m pytest -q --workers $(WORKERS)

.PHONY: setup demo test test-all test-changed mutants simulate lint bench calibrate mac-like browser pictures lowest clean help

help:            ## this list
	@awk -F ':.*## *' '/^[a-z-]+:.*##/ {printf "%-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:           ## .venv, Python packages, and through apt or brew what is missing of sshd, tmux, rsync, g++, git
	@TORCH_INDEX="$(TORCH_INDEX)" tools/setup.sh

demo:            ## the whole loop on an emulated L4: wake, send, preflight, build, 20 checks, benchmark, stop, what it costs
	@tools/setup.sh demo
	.venv/bin/fcctl run phase0 --on sandbox
	@echo "The emulated machine is off. Its emulator ends by itself in 15 minutes; at once: .venv/bin/fcctl emulator --stop"

test: setup      ## the tests, in five minutes on two processors
	$(PYTEST) -m "not full"

test-all: setup  ## the others: gcloud, wheel, demo, browser, searches, every fault and every line to be killed at
	$(PYTEST) -m full
	@$(PY) -m tests.durations

test-changed: setup  ## the tests nearest to what changed since COMMIT, or since the last one, in a minute
	$(PY) -m tests.changed $(COMMIT)

mutants: setup   ## N mutants of what holds money and results, drawn by SEED; prints those that no test notices
	@$(PY) -m pip install -q -e '.[mutants]'
	$(PY) -m tests.mutation --sample $(or $(N),200) --seed $(or $(SEED),0)

simulate: setup  ## N random schedules of faults against the true workflows, from SEED; prints the shortest failure
	$(PY) -m tests.simulation -n $(or $(N),10000) --seed $(or $(SEED),0)

lint: setup      ## ruff, formatting, mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(PY) -m mypy

mac-like: setup  ## commands, sandbox, schedules and transfer on the nearest thing to a Mac that Linux can be
	$(PY) -m tests.mac_like -n $(or $(N),4)

bench: setup     ## the speed table: ratios measured in one run
	$(PY) benchmarks/all.py

calibrate: setup ## how often compare and history are wrong: writes the tables of docs/statistics.md, 1,000 trials a row
	$(PY) benchmarks/verdicts.py --write
	$(PY) benchmarks/change_points.py --write

browser: setup   ## the dashboard and the report in a real headless Chromium
	@$(PY) -c 'import sys; from orchestrator.views.report import page; sys.exit(page.find_chromium() is None and "error: there is no Chromium; hint: apt install chromium")'
	$(PY) -m pytest -q tests/browser

pictures: setup  ## the pictures of docs/dashboard.md
	FCCTL_PICTURES=docs/images $(PY) -m pytest -q tests/browser -k whole

lowest: setup    ## a sandbox run, a search and the dashboard with the lowest version of every requirement; downloads them
	FCCTL_LOWEST=1 $(PY) -m pytest -q tests/e2e/test_lowest.py

clean:           ## remove the virtual environment and caches (never results/)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist
