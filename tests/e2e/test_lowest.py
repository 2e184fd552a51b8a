"""The lowest version of every requirement, in a virtual environment of its own: a sandbox run, a search, the dashboard.

``make lowest`` runs it: it downloads what pyproject.toml names. torch alone is the installed one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from tests.support.workspace import REPOSITORY, Workspace

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
#: What a user may install; `dev` and `mutants` are for who works on fcctl, and have the newest.
OF_USERS = [*PROJECT["dependencies"], *(r for name in EXTRAS if name not in ("dev", "mutants") for r in EXTRAS[name])]
LOWEST = {name: bound for name, _, bound in (requirement.partition(">=") for requirement in OF_USERS)}
SEARCH = """\
tune: sum
parameters: {N: [4, 1]}
build: echo $N > $TUNE_OUT/n
check: test -s $TUNE_OUT/n
bench: 'echo "{\\"us\\": $((10 * N + TUNE_CASE))}" > $TUNE_OUT/bench.json'
metric: {reader: metrics, file: $TUNE_OUT/bench.json, value: metrics.us}
cases: [1]
held_out: [2]
trials: 4
elites: 1
"""


def test_every_requirement_says_its_lowest_version_and_nothing_else() -> None:
    """So that one run with the lowest of all of them tests what pyproject.toml promises."""
    unlike = [r for r in OF_USERS if not re.fullmatch(r"[A-Za-z0-9-]+>=[0-9]+(\.[0-9]+)*", r)]
    assert unlike == []
    bounds = {(name, bound) for name, _, bound in (r.partition(">=") for r in OF_USERS)}
    assert len(bounds) == len(LOWEST), "one requirement has two bounds"


@pytest.fixture(scope="module")
def fcctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """``fcctl`` of an environment in which every requirement has its lowest version."""
    folder = tmp_path_factory.mktemp("lowest")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=REPOSITORY, check=True
    )
    (wheel,) = folder.glob("fcctl-*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    pins = [f"{name}=={bound}" for name, bound in LOWEST.items() if name != "torch"]
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *pins, wheel], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    (site,) = (folder / "venv").glob("lib/python3*/site-packages")
    _link_torch(site)
    yield folder / "venv/bin/fcctl"
    shutil.rmtree(folder)


def _link_torch(site: Path) -> None:
    """The installed torch, and what it needs and ``site`` lacks."""
    from packaging.requirements import Requirement

    there = {_folded(d.name) for d in metadata.distributions(path=[str(site)])}
    wanted = ["torch"]
    while wanted:
        name = _folded(wanted.pop())
        if name in there:
            continue
        there.add(name)
        distribution = metadata.distribution(name)
        needs = [Requirement(text) for text in distribution.requires or []]
        wanted += [r.name for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            (site / top).symlink_to(str(distribution.locate_file(top)))


def _folded(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Lowest(Workspace):
    """FlashCore's workspace, with that ``fcctl``."""

    def __init__(self, folder: Path, home: Path, program: Path) -> None:
        super().__init__(folder, home)
        self.program = program
        for name in ("jobs", "kernels"):
            ignored = shutil.ignore_patterns("__pycache__", "build")
            shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored, dirs_exist_ok=True)
        self.write_search("sum", SEARCH.removeprefix("tune: sum\n"))

    def env(self, **more: str) -> dict[str, str]:
        return {name: value for name, value in super().env(**more).items() if name != "PYTHONPATH"}

    def start(self, *args: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program, *args], cwd=self.root, env=self.env(**more), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def told(self, *args: str) -> Any:
        started = self.start("--json", *args)
        out, err = started.communicate()
        assert started.returncode == 0, f"fcctl {' '.join(args)}\n{out}\n{err}"
        return json.loads(out.splitlines()[-1])


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.skipif("FCCTL_LOWEST" not in os.environ, reason="it downloads 200 MB: make lowest")
def test_the_lowest_versions_run_phase0_a_search_and_the_dashboard(
    fcctl: Path, tmp_path: Path, private_home: Path
) -> None:
    asked = (
        "import json; from importlib.metadata import *; print(json.dumps({x.name: x.version for x in distributions()}))"
    )
    done = subprocess.run([fcctl.parent / "python", "-I", "-c", asked], check=True, capture_output=True, text=True)
    installed = {_folded(name): version for name, version in json.loads(done.stdout).items()}
    for name, bound in LOWEST.items():
        if name != "torch":
            assert re.fullmatch(rf"{re.escape(bound)}(\.0)*", installed[_folded(name)])

    workspace = Lowest(tmp_path / "w", private_home, fcctl)
    assert workspace.told("run", "phase0", "--on", "sandbox")["status"] == "passed"
    assert workspace.told("tune", "sum", "--on", "sandbox", "--trials", "4")["status"] == "passed"
    workspace.told("results", "report", "last:phase0", "last:tune", "--html", "-o", "report.html")
    assert "<svg" in (workspace.root / "report.html").read_text()

    ui = workspace.start("ui", "--no-open")
    assert ui.stdout is not None
    link = re.search(r"http://127\.0\.0\.1:\d+/\S+", ui.stdout.readline())
    assert link is not None
    browser = build_opener(HTTPCookieProcessor())
    assert "phase0" in browser.open(link[0]).read().decode()
    for page in ("history", "spending", "hosts"):
        with browser.open("/".join([*link[0].split("/")[:4], page])) as answer:
            assert answer.status == 200
    ui.send_signal(signal.SIGINT)
    ui.communicate()
    workspace.told("emulator", "--stop")
