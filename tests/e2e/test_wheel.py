"""What pip installs: the wheel alone, outside this repository, with the environment's dependencies."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePath

import pytest

from tests.support import scratch
from tests.support.sshd import end_processes_of
from tests.support.workspace import REPOSITORY

pytestmark = [
    pytest.mark.full,
    pytest.mark.first,
    pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="the wheel is built with hatchling"),
]


#: What building and editing leave in a tree.
LEFT_BEHIND = ("jobs/preflight.yaml~", "orchestrator/build/left.py", "orchestrator/__pycache__/left.pyc")


EXAMPLE = ("jobs", "kernels/flashcore", "tune")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a tree in which somebody has worked."""
    tree, folder = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in ("orchestrator", "remote", "kernels", "jobs", "tune", "docs", "results/reference"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "fcctl.toml"):
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


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and what it requires, linked from here: no torch."""
    folder = tmp_path_factory.mktemp("bare")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], cwd=folder)
    (site,) = folder.glob("lib/python3*/site-packages")
    for place in filter(lambda path: path.name == "site-packages", map(Path, sys.path)):
        for entry in place.iterdir():
            ours = entry.name.startswith(("torch", "fcctl", "_fcctl", "orchestrator", "pip", "nvidia"))
            if not ours and entry.suffix != ".pth":
                with contextlib.suppress(FileExistsError):
                    (site / entry.name).symlink_to(entry)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet", "--no-deps"]
    run([*pip, "--no-index", str(wheel)], cwd=folder)
    return folder


def run(
    argv: list[str],
    cwd: Path,
    env: dict[str, str] | None = None,
    codes: tuple[int, ...] = (0,),
) -> str:
    program = shutil.which(argv[0], path=(env or os.environ)["PATH"]) or argv[0]
    done = subprocess.run(
        [program, *argv[1:]],
        cwd=cwd, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
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
    data = {name.removeprefix("orchestrator/_data/flashcore/") for name in names if "/_data/" in name}
    published = {name for name in data if name.startswith("results/reference/")}
    assert len({name.split("/")[3] for name in published}) == 4
    parts = [REPOSITORY / "fcctl.toml", *(f for part in EXAMPLE for f in (REPOSITORY / part).rglob("*") if f.is_file())]
    parts += (REPOSITORY / "docs").rglob("*.md")  # what `fcctl help` prints
    tracked = {f.relative_to(REPOSITORY).as_posix() for f in parts if "__pycache__" not in f.parts}
    assert data - published == {name for name in tracked if "/build/" not in name}
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


def test_it_works_outside_the_repository_and_the_host_program_is_its_own(
    site: Path, installed: dict[str, str], private_home: Path, tmp_path: Path
) -> None:
    asked = "import orchestrator, fcctl_remote as r; print(orchestrator.__file__, r.__file__)"
    where = run([sys.executable, "-c", asked], cwd=tmp_path, env=installed)
    assert [path.startswith(f"{site}/") for path in where.split()] == [True, True]
    assert run([str(site / "bin/fcctl"), "--version"], cwd=tmp_path, env=installed).startswith("fcctl ")
    (tmp_path / "axpy.cu").write_text("__global__ void axpy(float *y) { y[threadIdx.x] += 1; }\n")
    run([str(site / "bin/fcctl"), "init"], cwd=tmp_path, env=installed)
    listed = run([str(site / "bin/fcctl"), "jobs", "ls"], cwd=tmp_path, env=installed)
    assert {"first", "preflight"} <= {line.split()[0] for line in listed.splitlines() if line.strip()}
    run([str(site / "bin/fcctl"), "jobs", "validate"], cwd=tmp_path, env=installed)
    assert run([str(site / "bin/fcctl"), "help", "jobs"], cwd=tmp_path, env=installed).startswith("# Jobs")
    shown = run([str(site / "bin/fcctl"), "run", "preflight", "--on", "local"], cwd=tmp_path, env=installed)
    assert "preflight on local  ✓ passed" in shown
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


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    run([*build, "-t", "sdist"], cwd=REPOSITORY)
    (source,) = tmp_path.glob("fcctl-*.tar.gz")
    shutil.unpack_archive(source, tmp_path, filter="data")
    run([*build, "-t", "wheel"], cwd=tmp_path / source.name.removesuffix(".tar.gz"))
    with zipfile.ZipFile(wheel) as here, zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as there:
        assert set(here.namelist()) == set(there.namelist())


def test_the_example_passes_in_an_empty_home_without_torch(bare: Path) -> None:
    """What a person types after ``uv tool install fcctl``, with a part of what test_demo.py runs."""
    home = Path(tempfile.mkdtemp(prefix="fcw", dir=scratch.folder()))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FCCTL_", "XDG_", "PYTHON", "VIRTUAL_ENV"))}
    env = {**kept, "HOME": str(home), "PATH": f"{bare / 'bin'}:/usr/local/bin:/usr/bin:/bin", "TMUX_TMPDIR": str(home)}
    try:
        assert run(["fcctl", "--version"], cwd=home, env=env).startswith("fcctl ")
        run(["fcctl", "init", "--example", "flashcore", "fc"], cwd=home, env=env)
        assert "phase3" in run(["fcctl", "jobs", "ls"], cwd=home / "fc", env=env)
        few = ["--set", "CASE=s64/1;edges", "--set", "SHAPE=s64"]
        shown = run(["fcctl", "run", "phase0", "--on", "sandbox", *few], cwd=home / "fc", env=env)
        assert "phase0 on sandbox  ✓ passed" in shown
        assert "2/2 cases passed" in shown
        assert "numpy" in shown
    finally:
        run(["fcctl", "emulator", "--stop"], cwd=home, env=env)
        end_processes_of(home)
        shutil.rmtree(home, ignore_errors=True)
