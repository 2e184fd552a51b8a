"""What pip installs: the wheel alone, outside this repository, with the environment's dependencies."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePath

import pytest

from orchestrator.runs.job.built_in import BUILT_IN
from tests.support.workspace import REPOSITORY

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="the wheel is built with hatchling"),
]


#: What building and editing leave in a tree.
LEFT_BEHIND = ("jobs/preflight.yaml~", "orchestrator/build/left.py", "orchestrator/__pycache__/left.pyc")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a tree in which somebody has worked."""
    tree, folder = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in ("orchestrator", "remote", "kernels", "jobs"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(REPOSITORY / name, tree / name)
    for name in LEFT_BEHIND:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("left behind")
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=tree)
    (built,) = folder.glob("fcctl-*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    run([*pip, "--target", str(folder), str(wheel)], cwd=folder)
    return folder


def run(argv: list[str], cwd: Path, env: dict[str, str] | None = None, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(
        argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode in codes, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def installed(site: Path, private_home: Path) -> dict[str, str]:
    """The environment of a user: the wheel on PYTHONPATH, the source tree nowhere."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FCCTL_")}
    return {**kept, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1", "HOME": str(private_home)}


def test_the_wheel_holds_what_it_should(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        entry_points = archive.read(next(n for n in names if n.endswith("/entry_points.txt"))).decode()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"orchestrator", "fcctl_remote", "fcctl_tune"}
    # The kernels and their jobs are a workspace of their own: nothing of fcctl reaches them.
    data = {name.removeprefix("orchestrator/_data/jobs/") for name in names if "/_data/" in name}
    assert data == {f"{name}.yaml" for name in BUILT_IN}
    assert {f"{top}/py.typed" for top in ("orchestrator", "fcctl_remote", "fcctl_tune")} <= set(names)
    left = {PurePath(name).name for name in LEFT_BEHIND}
    assert not [name for name in names if PurePath(name).name in left or "/build/" in name]
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "results"))]
    assert "fcctl = orchestrator.cli." in entry_points
    assert "License-File: LICENSE" in metadata


def test_its_types_are_seen_by_who_uses_it(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "from fcctl_remote.wire import StepSpec\nfrom fcctl_tune.errors import TuneError\n"
        "from orchestrator.base.run_id import new\n"
        "a: int = StepSpec\nb: int = TuneError\nc: int = new\n"
    )
    argv = [sys.executable, "-m", "mypy", "--no-incremental", "--config-file", os.devnull, "user.py"]
    said = run(argv, cwd=tmp_path, env=installed, codes=(1,))
    assert [line.split("[")[-1] for line in said.splitlines()[:-1]] == ["assignment]"] * 3, said


def test_it_works_outside_the_repository(site: Path, installed: dict[str, str], tmp_path: Path) -> None:
    asked = "import orchestrator, fcctl_remote as r; print(orchestrator.__file__, r.__file__)"
    where = run([sys.executable, "-c", asked], cwd=tmp_path, env=installed)
    assert [path.startswith(f"{site}/") for path in where.split()] == [True, True]
    assert run([str(site / "bin/fcctl"), "--version"], cwd=tmp_path, env=installed).startswith("fcctl ")
    (tmp_path / "axpy.cu").write_text("__global__ void axpy(float *y) { y[threadIdx.x] += 1; }\n")
    run([str(site / "bin/fcctl"), "init"], cwd=tmp_path, env=installed)
    listed = run([str(site / "bin/fcctl"), "jobs", "ls"], cwd=tmp_path, env=installed)
    assert {"first", "preflight"} <= {line.split()[0] for line in listed.splitlines() if line.strip()}
    run([str(site / "bin/fcctl"), "jobs", "validate"], cwd=tmp_path, env=installed)
    shown = run([str(site / "bin/fcctl"), "run", "preflight", "--on", "local"], cwd=tmp_path, env=installed)
    assert "preflight on local  ✓ passed" in shown


def test_the_host_program_is_the_wheels_own(
    site: Path, installed: dict[str, str], private_home: Path, tmp_path: Path
) -> None:
    run([str(site / "bin/fcctl"), "init"], cwd=tmp_path, env=installed)
    assert "GPU Hardware" in run(
        [str(site / "bin/fcctl"), "preflight", "--on", "local"], cwd=tmp_path, env=installed, codes=(0, 1)
    )
    (runner,) = (private_home / ".fcctl/runner").glob("*.pyz")
    assert hashlib.sha256(runner.read_bytes()).hexdigest() == runner.stem
    with zipfile.ZipFile(runner) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if name.startswith("fcctl_remote/")}
    shipped = {
        path.relative_to(site).as_posix(): path.read_bytes()
        for path in (site / "fcctl_remote").rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert packed == shipped
