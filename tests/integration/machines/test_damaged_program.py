"""A host program that is damaged on the machine's disk is found, put right, and named."""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.base.errors import HostUnusable
from orchestrator.machines.connect.agent import AgentSession
from orchestrator.machines.connect.reconnect import Connector
from tests.support import host_program
from tests.support.scripts import script
from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace


@pytest.fixture(autouse=True)
def own_program(sshd: LoopbackSshd) -> None:
    """What is damaged here is no other test's, and other Pythons have not compiled it."""
    folder = installed(sshd)
    shared, tag = folder.resolve(), sys.implementation.cache_tag
    others = [path.name for path in shared.rglob("*") if path.suffix in (".pyc", ".json") and tag not in path.name]
    folder.unlink()
    shutil.copytree(shared, folder, ignore=shutil.ignore_patterns(*others))


def flip(path: Path) -> None:
    """Change one byte: of a compiled module the first of its code, of another file one in the middle."""
    content = bytearray(path.read_bytes())
    content[16 if path.suffix == ".pyc" else len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def connected(sshd: LoopbackSshd) -> AgentSession:
    session = Connector().connect(sshd.target())
    assert isinstance(session, AgentSession)
    return session


def mended(sshd: LoopbackSshd) -> list[str]:
    """What the next session's host program put right before it answered."""
    session = connected(sshd)
    session.close()
    return session.hello.mended


def installed(sshd: LoopbackSshd) -> Path:
    """The folder that the host program runs from."""
    return sshd.home / ".fcctl/runner" / f"{host_program.built().sha256}.d"  # other tests may leave other ones there


def module(folder: Path, name: str, *, compiled: bool) -> Path:
    place = folder / f"{name}.py"
    (code,) = (place.parent / "__pycache__").glob(f"{place.stem}.*.pyc")
    return code if compiled else place


def test_a_host_that_lacks_it_gets_it_and_unpacks_it(sshd: LoopbackSshd) -> None:
    shutil.rmtree(installed(sshd).parent)
    assert mended(sshd) == []
    archive = installed(sshd).with_suffix(".pyz")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == archive.stem
    assert module(installed(sshd), "fcctl_remote/wire", compiled=True).is_file()
    assert mended(sshd) == []


@pytest.mark.parametrize(
    ("compiled", "names"),
    [(False, ["__main__", "fcctl_remote/run/supervisor"]), (True, ["fcctl_remote/__main__", "fcctl_remote/wire"])],
    ids=["source", "bytecode"],
)
def test_one_bad_byte_is_put_right(sshd: LoopbackSshd, compiled: bool, names: list[str]) -> None:
    assert mended(sshd) == []
    for name in names:
        place = module(installed(sshd), name, compiled=compiled)
        before = place.read_bytes()
        flip(place)
        assert mended(sshd) == [str(place.relative_to(installed(sshd)))]
        assert place.read_bytes() == before
    assert mended(sshd) == []


def test_a_file_that_is_gone_is_put_back(sshd: LoopbackSshd) -> None:
    mended(sshd)
    place = module(installed(sshd), "fcctl_remote/wire", compiled=False)
    place.unlink()
    assert mended(sshd) == ["fcctl_remote/wire.py"]
    (installed(sshd) / "__main__.py").unlink()
    assert mended(sshd) == ["__main__.py"]


def test_everything_damaged_the_archive_too_is_installed_again(sshd: LoopbackSshd) -> None:
    mended(sshd)
    folder = installed(sshd)
    archive = folder.with_suffix(".pyz")
    for place in [archive, *(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)]:
        flip(place)
    session = connected(sshd)
    session.close()
    assert session.hello.mended
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == archive.stem
    with zipfile.ZipFile(archive) as bundle:
        assert {name: (folder / name).read_bytes() for name in bundle.namelist()} == {
            name: bundle.read(name) for name in bundle.namelist()
        }
    assert mended(sshd) == []


def test_an_archive_damaged_alone_harms_nobody(sshd: LoopbackSshd) -> None:
    mended(sshd)
    archive = installed(sshd).with_suffix(".pyz")
    flip(archive)
    assert mended(sshd) == []
    flip(module(installed(sshd), "fcctl_remote/wire", compiled=True))
    assert len(mended(sshd)) == 1
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == archive.stem


def test_a_run_goes_through_and_doctor_says_what_it_did(sshd: LoopbackSshd, tmp_path: Path, private_home: Path) -> None:
    workspace = Workspace(tmp_path / "w", private_home, sshd)
    workspace.job("noop", "steps:\n  - {id: one, run: echo hi}\n")
    workspace.fcctl("run", "noop", "--on", "box")
    flip(module(installed(sshd), "fcctl_remote/run/judge", compiled=True))
    done = workspace.fcctl("run", "noop", "--on", "box")
    assert "damaged" in done.stderr
    assert "judge" in done.stderr
    flip(module(installed(sshd), "fcctl_remote/wire", compiled=True))
    flip(module(installed(sshd), "fcctl_remote/agent/transfer", compiled=False))
    findings = {f["id"]: f for f in workspace.json("doctor", "--on", "box")["findings"]}
    found = findings["host program"]
    assert found["status"] == "warn"
    assert "fcctl_remote/agent/transfer.py" in found["message"]
    assert "installed it again" in found["message"]
    assert "host program" not in {f["id"] for f in workspace.json("doctor", "--on", "box")["findings"]}


def test_a_program_that_cannot_start_says_what_to_type(sshd: LoopbackSshd, tmp_path: Path) -> None:
    """Its Python has no standard library: another copy of the host program cures nothing."""
    body = '[ "$1" = -V ] && echo Python 3.11.0 && exit\necho no module named encodings >&2; exit 1'
    python = script(tmp_path / "python3", body)
    with pytest.raises(HostUnusable) as caught:
        Connector().connect(sshd.target(python=str(python)))
    assert "encodings" in (caught.value.cause or "")
    hint = caught.value.hint or ""
    assert "doctor" not in hint
    assert f"{python} -I -S" in hint
