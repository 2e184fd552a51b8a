from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from orchestrator.machines.connect import bootstrap as runner_archive
from orchestrator.machines.connect.bootstrap import build_runner
from tests.integration.host_program.agent_client import host_python


def test_the_same_sources_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_runner(tmp_path / "a")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    second = build_runner(tmp_path / "b")
    assert first.sha256 == second.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()
    assert first.path.name == f"{first.sha256}.pyz"
    with zipfile.ZipFile(first.path) as bundle:
        names = bundle.namelist()
    assert names == sorted(names)
    assert "__main__.py" in names
    assert not any("__pycache__" in name for name in names)


def test_a_changed_source_gives_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_runner(tmp_path)
    sources = runner_archive._sources()
    monkeypatch.setattr(runner_archive, "_sources", lambda: [*sources, ("fcctl_remote/zz.py", b"# new\n")])
    assert build_runner(tmp_path).sha256 != first.sha256


def test_it_is_built_once_and_a_damaged_one_again(tmp_path: Path) -> None:
    first = build_runner(tmp_path)
    written = first.path.stat()
    assert build_runner(tmp_path) == first
    assert (first.path.stat().st_ino, first.path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    for place in tmp_path.iterdir():
        place.write_bytes(place.read_bytes()[:-10])
    again = build_runner(tmp_path)
    assert hashlib.sha256(again.path.read_bytes()).hexdigest() == first.sha256


def _start(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(place.parent), "PATH": os.defpath}
    return subprocess.run([sys.executable, str(place), *words], check=False, env=env, capture_output=True, text=True)


def test_it_unpacks_itself_once_beside_itself(tmp_path: Path) -> None:
    place = _installed(tmp_path)
    for _ in range(2):
        done = _start(place, "version")
        assert done.returncode == 0, done.stderr
        assert place.stem in done.stdout
    assert sorted(os.listdir(place.parent)) == [f"{place.stem}.d", place.name]
    assert list((place.with_suffix(".d") / "fcctl_remote" / "__pycache__").iterdir())


def _installed(top: Path) -> Path:
    """The archive below ``top``, where it unpacks itself."""
    built = build_runner(top / "cache")
    folder = top / "root" / "runner"
    folder.mkdir(parents=True)
    place = folder / built.path.name
    shutil.copy(built.path, place)
    return place


def test_each_python_compiles_for_itself(tmp_path: Path) -> None:
    place = _installed(tmp_path)
    env = {"HOME": str(tmp_path), "PATH": os.defpath}
    for python in (sys.executable, host_python()):
        done = subprocess.run([python, "-I", "-S", place, "version"], env=env, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        before = {path: path.stat().st_mtime_ns for path in place.with_suffix(".d").rglob("*") if path.is_file()}
        subprocess.run([python, "-I", "-S", place.with_suffix(".d"), "version"], env=env, check=True)
        assert before == {path: path.stat().st_mtime_ns for path in before}, "nothing was compiled again"


def test_its_first_start_runs_from_the_copy_too(tmp_path: Path) -> None:
    place = _installed(tmp_path)
    argv = [sys.executable, "-v", "-I", "-S", str(place), "version"]
    done = subprocess.run(argv, env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert f"code object from '{place.with_suffix('.d')}/fcctl_remote/__pycache__/wire." in done.stderr


def test_two_first_starts_at_once(tmp_path: Path) -> None:
    place = _installed(tmp_path)
    argv, env = [sys.executable, "-I", "-S", str(place), "version"], {"HOME": str(tmp_path), "PATH": os.defpath}
    started = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    assert [(one.communicate()[1], one.returncode) for one in started] == [(b"", 0)] * 4
    assert sorted(path.name for path in place.parent.iterdir()) == [f"{place.stem}.d", place.name]


def test_a_damaged_copy_that_cannot_be_mended_runs_from_the_archive(tmp_path: Path) -> None:
    top = Path(tempfile.mkdtemp(dir="/tmp"))  # where any user may look
    top.chmod(0o755)
    try:
        place, python = _installed(top), shutil.which("python3", path=os.defpath) or sys.executable
        place.chmod(0o644)
        subprocess.run([python, str(place), "version"], check=True, stdout=subprocess.DEVNULL)
        (code,) = (place.with_suffix(".d") / "fcctl_remote/__pycache__").glob("wire.*.pyc")
        code.write_bytes(code.read_bytes()[:16])
        folders = [path for path in top.rglob("*") if path.is_dir()]
        for folder in folders:
            folder.chmod(0o555)
        nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
        argv, env = [python, str(place.with_suffix(".d")), "version"], {"HOME": "/", "PATH": os.defpath}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, **nobody)  # type: ignore[call-overload]
        assert (done.returncode, done.stderr) == (0, "")
        assert place.stem in done.stdout
        for folder in folders:
            folder.chmod(0o755)
    finally:
        shutil.rmtree(top)


def test_it_runs_where_it_cannot_unpack(tmp_path: Path) -> None:
    built = build_runner(tmp_path)
    assert built.sha256 in _start(built.path, "version").stdout
    assert not (tmp_path / f"{built.sha256}.d").exists()


@pytest.mark.parametrize("words", [(), ("dance",), ("supervise",), ("version", "now"), ("read", "ptxas")])
def test_a_wrong_command_line_says_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = _start(build_runner(tmp_path).path, *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
