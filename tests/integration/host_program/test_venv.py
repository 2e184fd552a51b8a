"""``fcctl-host venv``: a virtual environment on top of another Python's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fcctl_remote.run.environment import PTH
from tests.integration.host_program.agent_client import Agent, step

PROGRAM = "import sys; sys.path.insert(0, {!r}); from fcctl_remote.__main__ import main; sys.exit(main())"
HOST = [sys.executable, "-I", "-S", "-c", PROGRAM.format(str(Path(__file__).parents[3] / "remote"))]


def made(folder: Path, *words: str) -> Path:
    """A virtual environment, as ``python -m venv`` makes it."""
    subprocess.run([sys.executable, "-m", "venv", *words, str(folder)], check=True)
    return folder


def packages(venv: Path) -> Path:
    [place] = venv.glob("lib/python3*/site-packages")
    return place


def installed(venv: Path, name: str, version: str) -> None:
    """A package, as pip leaves it."""
    place = packages(venv)
    (place / name).mkdir()
    (place / name / "__init__.py").write_text(f"version = {version!r}\n")
    (place / f"{name}-{version}.dist-info").mkdir()
    (place / f"{name}-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine's Python, in a virtual environment, with torch and a package that is in development."""
    folder = made(tmp_path_factory.mktemp("below") / "venv")
    installed(folder, "torch", "2.11")
    installed(folder, "numpy", "2.0")
    developed = folder.parent / "developed"
    developed.mkdir()
    (developed / "kernels.py").write_text("")
    (packages(folder) / "developed.pth").write_text(f"{developed}\n")
    return folder


def make(python: Path, folder: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FCCTL_PYTHON": str(python)}
    return subprocess.run([*HOST, "venv", str(folder)], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def python_of(venv: Path, *words: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([venv / "bin" / "python", *words], env=env, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


@pytest.mark.full
def test_it_sees_what_is_below_and_what_is_installed_into_it_goes_first(below: Path, tmp_path: Path) -> None:
    for name in ("venv", "json", "site"):  # a repository's own
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    done = make(below / "bin" / "python", Path("build/venv"), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    venv = tmp_path / "build" / "venv"
    assert python_of(venv, "-c", "import torch, kernels; print(torch.version)") == "2.11"
    installed(venv, "numpy", "3.0")
    assert python_of(venv, "-c", "import numpy; print(numpy.version)") == "3.0"
    assert python_of(below, "-c", "import numpy; print(numpy.version)") == "2.0"


@pytest.mark.full
def test_pip_takes_what_is_seen_as_installed_and_installs_into_the_new_one(below: Path, tmp_path: Path) -> None:
    assert make(below / "bin" / "python", tmp_path / "venv", tmp_path).returncode == 0
    asked = python_of(tmp_path / "venv", "-m", "pip", "install", "--no-index", "torch>=2")
    assert "already satisfied: torch" in asked
    assert str(below) in asked
    where = python_of(tmp_path / "venv", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    assert Path(where) == packages(tmp_path / "venv")


@pytest.mark.full
def test_where_nobody_has_pip_it_brings_its_own(tmp_path: Path) -> None:
    below = made(tmp_path / "below", "--without-pip")
    assert make(below / "bin" / "python", tmp_path / "venv", tmp_path).returncode == 0
    assert str(tmp_path / "venv") in python_of(tmp_path / "venv", "-m", "pip", "--version")


@pytest.mark.full
def test_one_that_is_there_is_kept(below: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert make(below / "bin" / "python", tmp_path / "venv", tmp_path).returncode == 0
        if not (packages(tmp_path / "venv") / "mine").exists():
            installed(tmp_path / "venv", "mine", "1.0")
    assert python_of(tmp_path / "venv", "-c", "import mine, torch; print(mine.version)") == "1.0"
    assert len((packages(tmp_path / "venv") / PTH).read_text().splitlines()) == 1


@pytest.mark.full
def test_what_does_not_work_is_told_with_what_to_do(below: Path, tmp_path: Path) -> None:
    done = make(tmp_path / "none", tmp_path / "venv", tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path / 'none'} does not run" in done.stderr
    assert "FCCTL_PYTHON" in done.stderr.splitlines()[-1]
    (tmp_path / "file").write_text("")
    done = make(below / "bin" / "python", tmp_path / "file", tmp_path)
    assert done.returncode == 1
    assert "cannot create a virtual environment: " in done.stderr
    assert done.stderr.splitlines()[-1].startswith("hint: ")
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.full
def test_a_step_finds_it_on_its_path(agent: Agent, below: Path) -> None:
    run = "fcctl-host venv build/venv\nbuild/venv/bin/python -c 'import torch; assert torch.version == \"2.11\"'"
    run_id = agent.submit(step("venv", run), env={"FCCTL_PYTHON": str(below / "bin" / "python")})
    assert agent.outcome(run_id).status == "passed"
