"""Runs in one file: out here, in there, and what hostile archives come to."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from orchestrator.app import SystemClock
from orchestrator.results.store.store import FileStore
from tests.integration.results.conftest import CONFIG, Typed
from tests.support.measured_runs import measured, simple


@pytest.fixture
def there(tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch, fcctl: Typed) -> Path:
    """The workspace an archive comes into, empty; beside it ``runs.tar.zst`` with the two runs of another."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "fcctl.toml").write_text(CONFIG)
    store = FileStore(here / "results", SystemClock())
    for i in range(2):
        measured(store, [simple(10.0 + i)], at=60 * i)
    fcctl("-C", str(here), "results", "export", "all", "-o", str(tmp_path / "runs.tar.zst"))
    found = tmp_path / "there"
    found.mkdir()
    (found / "fcctl.toml").write_text(CONFIG)
    monkeypatch.chdir(found)
    return found


def left(workspace: Path) -> list[str]:
    """All that is in the results folder, but for what any command makes."""
    root = workspace / "results"
    found = [p.relative_to(root).as_posix() for p in root.rglob("*")] if root.exists() else []
    return sorted(p for p in found if not p.startswith("index.sqlite") and p != "runs")


def test_runs_come_in_byte_for_byte(there: Path, results: Typed) -> None:
    results("import", "../runs.tar.zst", "--dry-run")
    assert left(there) == [], "only verified"
    done = results("import", "../runs.tar.zst", "--json").json
    runs = there.parent / "here" / "results" / "runs"
    assert sorted(done["imported"]) == sorted(p.name for p in runs.iterdir())
    for file in runs.rglob("*"):
        copy = there / "results" / "runs" / file.relative_to(runs)
        assert copy.is_dir() if file.is_dir() else copy.read_bytes() == file.read_bytes()
    assert len(results("ls", "--json").json["runs"]) == 2
    assert len(results("import", "../runs.tar.zst", "--json").json["here_already"]) == 2


def test_archives_are_reproducible_and_hold_plain_files_alone(there: Path, fcctl: Typed) -> None:
    here = there.parent / "here"
    for file in (here / "results" / "runs").rglob("*.json"):
        file.touch()
        file.chmod(0o600)
    next((here / "results" / "runs").iterdir()).joinpath("link").symlink_to("/etc/passwd")
    fcctl("-C", str(here), "results", "export", "all", "-o", "again.tar.zst")
    assert (there / "again.tar.zst").read_bytes() == (there.parent / "runs.tar.zst").read_bytes()


def test_a_run_of_the_same_name_and_other_content_stays(there: Path, results: Typed) -> None:
    results("import", "../runs.tar.zst")
    run = next((there / "results" / "runs").iterdir())
    (run / "journal.jsonl").write_text("mine\n")
    assert "its files differ" in results("import", "../runs.tar.zst", code=8).err
    assert (run / "journal.jsonl").read_text() == "mine\n"


def test_an_archive_comes_in_whole_or_not_at_all(there: Path, results: Typed) -> None:
    whole = (there.parent / "runs.tar.zst").read_bytes()
    bad = there / "bad.tar.zst"
    for content in (whole[:-40], whole[: len(whole) // 2], whole[:10], b"", b"no archive at all" * 100):
        bad.write_bytes(content)
        assert "was refused" in results("import", "bad.tar.zst", code=1).err, len(content)
        assert left(there) == []
    results("import", "nowhere.tar.zst", code=7)


# ------------------------------------------------------------------------------------------------ hostile
RUN = "20261121t081530z-bench-l4-3fa9c1"
RECORD = json.dumps(
    {"run_id": RUN, "job": "bench", "target": "l4", "status": "passed", "exit_code": 0, "created": "x", "finished": "x",
     "source": {"tree_sha256": "ab"}}
).encode()  # fmt: skip


def described(path: str, content: bytes, **wrong: Any) -> dict[str, Any]:
    return {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), **wrong}


def packed(files: list[dict[str, Any]], members: list[tuple[tarfile.TarInfo, bytes]], **manifest: Any) -> bytes:
    """An archive whose manifest says ``files`` and which holds ``members``."""
    stream = io.BytesIO()
    content = {"format": "fcctl-runs", "version": 1, "runs": {RUN: {"files": files}}, **manifest}
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in [plain("manifest.json", json.dumps(content).encode()), *members]:
            tar.addfile(info, io.BytesIO(data))
    return zstandard.compress(stream.getvalue())


def plain(name: str, content: bytes, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = len(content) if kind == tarfile.REGTYPE else 0
    return info, content


GOOD = plain(f"{RUN}/run.json", RECORD)


def one(path: str, content: bytes = b"x", **wrong: Any) -> bytes:
    """A manifest with one more file of that name, which follows as told."""
    return packed(
        [described("run.json", RECORD), described(path, content, **wrong)], [GOOD, plain(f"{RUN}/{path}", content)]
    )


def swapped(kind: bytes, link: str) -> bytes:
    return packed([described("run.json", RECORD), described("a", b"")], [GOOD, plain(f"{RUN}/a", b"", kind, link)])


def sparse() -> bytes:
    info, content = plain(f"{RUN}/a", b"x")
    info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "1"}
    return packed([described("run.json", RECORD), described("a", b"x")], [GOOD, (info, content)])


def cut_short() -> bytes:
    """As a download that broke off leaves it, in the middle of a file."""
    whole = zstandard.decompress(one("a", b"x" * 30_000))
    return zstandard.compress(whole[: whole.index(b"x" * 100) + 700])


def behind(record: bytes) -> bytes:
    """A file behind an extended header with this record."""
    body = b" " + record + b"\n"
    content = b"%d" % (len(body) + 2) + body
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, len(content)
    header = info.tobuf(tarfile.USTAR_FORMAT)
    return zstandard.compress(header + content.ljust(512, b"\0") + _tar(plain("manifest.json", b"{}")))


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a symbolic link": (lambda: swapped(tarfile.SYMTYPE, "/etc/passwd"), "is not a regular file"),
    "a hard link": (lambda: swapped(tarfile.LNKTYPE, f"{RUN}/run.json"), "is not a regular file"),
    "a device": (lambda: swapped(tarfile.CHRTYPE, ""), "is not a regular file"),
    "a pipe": (lambda: swapped(tarfile.FIFOTYPE, ""), "is not a regular file"),
    "a sparse file": (sparse, "is not a regular file"),
    "an absolute path": (lambda: one("/etc/cron.d/x"), "is not allowed"),
    "a way up": (lambda: one("../../x"), "is not allowed"),
    "a way up inside": (lambda: one("steps/../../../x"), "is not allowed"),
    "a control character": (lambda: one("a\x1b[2J"), "is not allowed"),
    "a name of the store's own": (lambda: one(".fcctl-run.json"), "is not allowed"),
    "a double in the manifest": (lambda: one("RUN.json"), "twice"),
    "a wrong sum": (lambda: one("a", sha256="0" * 64), "sha256"),
    "a longer file": (lambda: one("a", b"xx", size=1), "the next file must be"),
    "a negative size": (lambda: one("a", size=-1), "no size"),
    "a bomb": (lambda: one("a", size=10**10), "are not plausible"),
    "more than was told": (
        lambda: packed([described("run.json", RECORD)], [GOOD, plain(f"{RUN}/more", b"x")]), "more than its manifest",
    ),
    "less than was told": (
        lambda: packed([described("run.json", RECORD), described("a", b"x")], [GOOD]), "the next file must be",
    ),
    "a member twice": (
        lambda: packed([described("run.json", RECORD), described("a", b"x")], [GOOD, GOOD]), "the next file must be",
    ),
    "no manifest": (lambda: zstandard.compress(b"\0" * 1024), "is not a manifest"),
    "another format": (lambda: packed([], [], format="zip"), "was not written by fcctl"),
    "a later version": (lambda: packed([], [], version=2), "version 2"),
    "no run": (lambda: packed([], [], runs={"../x": {"files": []}}), "is not a run id"),
    "a run without a record": (lambda: packed([described("a", b"x")], [plain(f"{RUN}/a", b"x")]), "no run.json"),
    "a record of another run": (
        lambda: packed([described("run.json", RECORD.replace(b"3fa9c1", b"3fa9c2"))],
                       [plain(f"{RUN}/run.json", RECORD.replace(b"3fa9c1", b"3fa9c2"))]), "another run",
    ),
    "a record that is none": (
        lambda: packed([described("run.json", b"{")], [plain(f"{RUN}/run.json", b"{")]), "run.json",
    ),
    "manifest nested deeply": (
        lambda: zstandard.compress(_tar(plain("manifest.json", b"[" * 100_000))), "is not JSON",
    ),
    "a file that is cut short": (cut_short, "its tar is damaged"),
    "a sparse map of words": (lambda: behind(b"GNU.sparse.map=some,words"), "its tar is damaged"),
    "an encoding that is none": (lambda: behind(b"hdrcharset=\xff"), "was refused"),
    "a huge extended header": (
        lambda: zstandard.compress(_tar(_extended(200_000))), "too long",
    ),
    "a manifest that never comes": (
        lambda: zstandard.compress(b"".join(plain(f"x{i}", b"")[0].tobuf() for i in range(4000))),
        "is not a manifest",
    ),
    "a manifest of brackets": (
        lambda: zstandard.compress(_tar(plain("manifest.json", b"[" + b"{}," * 2_000_000 + b"0]"))), "MiB of memory",
    ),
}  # fmt: skip


def _tar(member: tuple[tarfile.TarInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(member[0], io.BytesIO(member[1]))
    return stream.getvalue()


def _extended(size: int) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, size
    return info, b"x" * size


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(there: Path, results: Typed, name: str) -> None:
    make, reason = HOSTILE[name]
    (there / "bad.tar.zst").write_bytes(make())
    said = results("import", "bad.tar.zst", code=1).err
    assert reason in said
    assert "\x1b" not in said
    assert left(there) == []
    assert {p.name for p in there.parent.iterdir()} - {"home"} == {"here", "runs.tar.zst", "there"}


def test_the_archives_that_hostile_ones_are_made_like_would_come_in(there: Path, results: Typed) -> None:
    """Else every refusal above could be for another reason."""
    (there / "good.tar.zst").write_bytes(one("steps/a/ü-log.txt"))
    results("import", "good.tar.zst")
    assert (there / "results" / "runs" / RUN / "steps" / "a" / "ü-log.txt").read_bytes() == b"x"
    shutil.rmtree(there / "results")
    long = "/".join(["d" * 40] * 6)
    (there / "good.tar.zst").write_bytes(one(long))
    results("import", "good.tar.zst")


def test_names_that_programs_act_on_are_changed(there: Path, results: Typed) -> None:
    """An archive of before that was done, or of somebody who means harm."""
    files = [described("run.json", RECORD), described("artifacts/.git/config", b"x"), described("artifacts/HEAD", b"y")]
    members = [GOOD, plain(f"{RUN}/artifacts/.git/config", b"x"), plain(f"{RUN}/artifacts/HEAD", b"y")]
    (there / "old.tar.zst").write_bytes(packed(files, members))
    assert "2 files renamed with underscores" in results("import", "old.tar.zst").err
    folder = there / "results" / "runs" / RUN / "artifacts"
    assert (folder / "_.git_" / "config").read_bytes() == b"x"
    assert sorted(p.name for p in folder.iterdir()) == ["_.git_", "_HEAD_"]
    assert results("import", "old.tar.zst", "--json").json["here_already"] == [RUN]  # the same once more
    both = [*files, described("artifacts/_.GIT_/config", b"z")]
    (there / "both.tar.zst").write_bytes(packed(both, [*members, plain(f"{RUN}/artifacts/_.GIT_/config", b"z")]))
    assert "is listed twice" in results("import", "both.tar.zst", code=1).err


def test_a_folder_of_that_name_is_not_overwritten(there: Path, results: Typed) -> None:
    mine = there / "results" / "runs" / RUN
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("mine")
    (there / "good.tar.zst").write_bytes(one("a"))
    results("import", "good.tar.zst", code=8)
    assert left(there) == [f"runs/{RUN}", f"runs/{RUN}/notes.txt"]
