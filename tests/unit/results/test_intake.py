from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fcctl_remote import wire
from orchestrator.app import SystemClock
from orchestrator.base import safe_paths
from orchestrator.base.errors import DiskError, FcctlError, HostFault
from orchestrator.results.store.intake import FolderIntake, Limits
from orchestrator.results.store.store import FileStore
from orchestrator.workspace.init import init
from tests.support.small_disk import largest_file
from tests.support.stores import begin, make_record

BAD = [
    "", "/", "/etc/passwd", "..", ".", "../x", "a/../../x", "a/..", "./a", "a/./b", "a//b", "a/", "/a", "a\\b", "..\\x",
    "a\nb", "a\0b", "\x1b[31m", "a\x7f", "a\x9b", "a\u202eb", "zero\u200bwidth", "\ud800", "line\u2028x",
    "x" * 256, "é" * 128, "/".join("a" * 33), "/".join(["x" * 200] * 4),
]  # fmt: skip
RESERVED = ["run.json", "RUN.json", "plan.json", "journal.jsonl", "Journal.JSONL", ".fcctl-run.json", ".FCCTL-x/y"]
GOOD = [
    "a",
    "steps/build/log.txt",
    "a b",
    'it\'s "quoted"',
    "-rf",
    "~",
    "$HOME",
    "a/run.json",
    "結果.json",
    "é",
    "a.partial",
    "x" * 255,
]


@pytest.fixture
def intake(tmp_path: Path) -> FolderIntake:
    return FolderIntake(tmp_path / "runs" / "x.partial")


def entry(path: str, content: bytes) -> wire.FileEntry:
    return wire.FileEntry(path, len(content), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("name", BAD)
def test_names_that_are_refused(intake: FolderIntake, name: str, tmp_path: Path) -> None:
    assert intake.accepts(name) == "bad_name"
    with pytest.raises(HostFault) as raised:
        intake.write(name, 0, b"x")
    assert raised.value.fault == "bad_name"
    assert intake.size(name) == 0
    assert intake.read_json(name) is None
    assert not intake.verified(wire.FileEntry(name, 1, "0" * 64))
    intake.discard(name)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("name", RESERVED)
def test_names_the_controller_keeps_for_itself(intake: FolderIntake, name: str) -> None:
    assert intake.accepts(name) == "reserved"


@pytest.mark.parametrize("name", GOOD)
def test_names_that_are_taken(intake: FolderIntake, name: str) -> None:
    assert intake.accepts(name) is None
    intake.write(name, 0, b"content")
    assert (intake.root / name).read_bytes() == b"content"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("A", "a"), ("dir/x", "Dir/y"), ("stra\u00dfe", "STRASSE"), ("\u00e9", "e\u0301"), ("\u212b", "\u00e5"),
        ("a", "a/b"), ("a/b", "a"), ("A", "a/b"), ("x/Y/z", "x/y"),
    ],
)  # fmt: skip
def test_two_names_for_what_some_file_system_takes_for_one(intake: FolderIntake, first: str, second: str) -> None:
    assert intake.accepts(first) is None
    assert intake.accepts(second) == "collides"
    assert intake.accepts(first) is None, "the first keeps its name"


def test_names_of_an_interrupted_collection_are_remembered(intake: FolderIntake) -> None:
    intake.write("steps/A/log", 0, b"12345")
    again = FolderIntake(intake.root, Limits(bytes=8, files=2))
    assert again.accepts("steps/a/log") == "collides"
    assert again.accepts("steps/A/log") is None
    assert again.size("steps/A/log") == 5
    assert again.accepts("b", size=4) == "too_large"
    assert again.accepts("b", size=3) is None
    assert again.accepts("c") == "too_many_files"


def test_bytes_arrive_in_pieces_and_again_after_a_cut(intake: FolderIntake) -> None:
    intake.write("f", 0, b"0123")
    intake.write("f", 4, b"4567")
    intake.write("f", 2, b"23")  # a piece sent twice
    assert (intake.root / "f").read_bytes() == b"01234567"
    assert intake.verified(entry("f", b"01234567"))
    assert not intake.verified(entry("f", b"0123456X"))
    assert not intake.verified(entry("f", b"0123"))
    assert not intake.verified(entry("g", b""))
    intake.discard("f")
    intake.discard("f")
    assert intake.size("f") == 0
    assert intake.accepts("f") is None


def test_an_empty_file_is_a_file(intake: FolderIntake) -> None:
    intake.write("empty", 0, b"")
    assert intake.verified(entry("empty", b""))


@pytest.mark.parametrize("offset", [1, 5 * 1024**3, -1])
def test_the_host_cannot_make_holes(intake: FolderIntake, offset: int) -> None:
    with pytest.raises(HostFault) as raised:
        intake.write("sparse", offset, b"x")
    assert raised.value.fault == "bad_reply"
    assert intake.size("sparse") == 0


def test_more_bytes_than_the_limit(tmp_path: Path) -> None:
    intake = FolderIntake(tmp_path / "p", Limits(bytes=10))
    intake.write("a", 0, b"123456")
    intake.write("a", 0, b"123456")  # no growth, no cost
    with pytest.raises(HostFault) as raised:
        intake.write("b", 0, b"12345")
    assert raised.value.fault == "too_large"
    assert intake.size("a") == 6
    intake.discard("a")
    intake.write("b", 0, b"0123456789")


def test_room_is_kept_for_what_was_announced(tmp_path: Path) -> None:
    intake = FolderIntake(tmp_path / "p", Limits(bytes=10))
    assert intake.accepts("a", 6) is None
    assert intake.accepts("b", 5) == "too_large"
    assert intake.accepts("b", 4) is None
    assert intake.accepts("a", 6) is None, "it has its room"
    with pytest.raises(HostFault):
        intake.write("c", 0, b"1")
    intake.write("a", 0, b"123456")
    with pytest.raises(HostFault):
        intake.write("a", 6, b"7")
    intake.discard("b")
    assert intake.accepts("c", 4) is None


def test_bytes_are_counted_to_the_last_one_whatever_is_discarded(tmp_path: Path) -> None:
    assert (Limits().bytes, Limits().files) == (20 << 30, 100_000)
    none = FolderIntake(tmp_path / "none", Limits(bytes=0))
    assert (none.accepts("a"), none.accepts("b", 0), none.accepts("c", 1)) == (None, None, "too_large")
    intake = FolderIntake(tmp_path / "p", Limits(bytes=10))
    for _ in range(3):
        intake.discard("absent")
    assert intake.accepts("a", 11) == "too_large"
    assert intake.accepts("a", 10) is None
    intake.discard("a")
    assert [intake.accepts("a", size) for size in (4, 6)] == [None, None], "it grows"
    assert [intake.accepts(name, 4) for name in ("b", "c")] == [None, "too_large"]
    assert not intake.verified(entry("absent", b""))
    assert intake.size("absent") == 0


def test_links_that_are_left_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "p", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
    (outside / "large").write_bytes(b"x" * 9)
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "large")
    (root / "dangling").symlink_to("nothing")
    intake = FolderIntake(root, Limits(bytes=20, files=4))
    assert intake.accepts("a", 20) is None
    assert intake.accepts("b") is None, "of the links, two count as files, and nothing behind them"


def test_what_is_here_of_a_file_that_is_too_large_goes(tmp_path: Path) -> None:
    FolderIntake(tmp_path / "p").write("a", 0, b"12345678")
    intake = FolderIntake(tmp_path / "p", Limits(bytes=10))
    assert intake.accepts("a", 11) == "too_large"
    assert intake.size("a") == 0
    assert intake.accepts("b", 10) is None


def test_a_piece_for_which_there_is_no_room_leaves_nothing(intake: FolderIntake) -> None:
    intake.write("f", 0, b"0123")
    with largest_file(6), pytest.raises(DiskError, match="disk is full: could not store the results"):
        intake.write("f", 4, b"4567")
    assert (intake.root / "f").read_bytes() == b"0123"
    intake.write("f", 4, b"4567")
    assert (intake.root / "f").read_bytes() == b"01234567"


def test_files_are_never_executable(intake: FolderIntake) -> None:
    before = os.umask(0)
    try:
        intake.write("d/script.sh", 0, b"#!/bin/sh\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE((intake.root / "d/script.sh").stat().st_mode) == 0o644


def plant_link(at: Path, outside: Path) -> None:
    at.symlink_to(outside)


def plant_hard_link(at: Path, outside: Path) -> None:
    os.link(outside / "secret", at)


def plant_fifo(at: Path, outside: Path) -> None:
    os.mkfifo(at)


@pytest.mark.parametrize("plant", [plant_link, plant_hard_link, plant_fifo])
def test_what_is_planted_in_the_folder_leads_nowhere(intake: FolderIntake, tmp_path: Path, plant: object) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("{}")
    intake.write("steps/a", 0, b"1")
    plant(intake.root / "steps" / "evil", outside)  # type: ignore[operator]
    for path in ("steps/evil", "steps/evil/secret"):
        for touch in (
            lambda p: intake.write(p, 0, b"overwritten"),
            intake.size,
            intake.read_json,
            lambda p: intake.verified(entry(p, b"{}")),
        ):
            with pytest.raises(FcctlError):
                touch(path)
    assert (outside / "secret").read_text() == "{}"
    assert os.listdir(outside) == ["secret"]


def test_a_linked_partial_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "x.partial").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FcctlError):
        FolderIntake(tmp_path / "x.partial").write("a", 0, b"x")
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_collected_json_file(intake: FolderIntake) -> None:
    assert intake.read_json("outcome.json") is None
    intake.write("outcome.json", 0, b'{"a": [1]}')
    assert intake.read_json("outcome.json") == {"a": [1]}
    intake.write("outcome.json", 0, b"nope")
    with pytest.raises(ValueError):
        intake.read_json("outcome.json")


hostile = st.lists(
    st.sampled_from(["..", ".", "", "a", "A", "b", "run.json", "etc", "\n", "\x1b", "link", "é", "e\u0301", "C:", "~"])
    | st.text(max_size=6),
    min_size=1,
    max_size=6,
).flatmap(lambda parts: st.sampled_from(["/", "//", "\\"]).map(lambda sep: sep.join(parts)))


@given(names=st.lists(hostile | st.text(max_size=300), min_size=1, max_size=12))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_ever_made_outside_the_folder(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    top = tmp_path_factory.mktemp("world")
    outside = top / "outside"
    outside.mkdir()
    root = top / "runs" / "x.partial"
    intake = FolderIntake(root)
    (root / "link").symlink_to(outside)
    stored: dict[str, str] = {}
    for number, name in enumerate(names):
        try:
            intake.write(name, 0, b"%d" % number)
        except FcctlError:
            continue
        place = safe_paths.harmless(name)
        assert stored.setdefault(safe_paths.folded(place), place) == place, "one file got two names"
    assert os.listdir(outside) == []
    assert sorted(os.listdir(top)) == ["outside", "runs"]
    assert os.listdir(top / "runs") == ["x.partial"]
    found = {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and not p.is_symlink()}
    assert found == set(stored.values())
    assert not found & set(safe_paths.RESERVED)


#: As a host may spell them; what each is to be called here.
ACTING = {
    "artifacts/.git/config": "artifacts/_.git_/config", "artifacts/.GIT": "artifacts/_.GIT_",
    "a/.git/hooks/.x": "a/_.git_/hooks/_.x_", "artifacts/HEAD": "artifacts/_HEAD_",
    "artifacts/head": "artifacts/_head_", "artifacts/fcctl.toml": "artifacts/_fcctl.toml_",
    "artifacts/FCCTL.Toml": "artifacts/_FCCTL.Toml_", "artifacts/.envrc": "artifacts/_.envrc_",
    ".vscode/tasks.json": "_.vscode_/tasks.json", "x/.Gitattributes": "x/_.Gitattributes_",
    "x/.gitmodules": "x/_.gitmodules_", "x/.hg/hgrc": "x/_.hg_/hgrc", "x/.idea/a": "x/_.idea_/a",
    "x/.tool-versions": "x/_.tool-versions_", "x/.python-version": "x/_.python-version_",
    "x/_darcs/prefs/defaults": "x/__darcs_/prefs/defaults", "x/cvs/Root": "x/_cvs_/Root",
    "x/mise.local.toml": "x/_mise.local.toml_", "x/rust-toolchain": "x/_rust-toolchain_",
    "x/conftest.py": "x/_conftest.py_", "x/test_a.py": "x/_test_a.py_", "x/a_test.go": "x/_a_test.go_",
    "x/a.test.mjs": "x/_a.test.mjs_", "x/prettier.config.js": "x/_prettier.config.js_",
    "x/te\u017ft_a.py": "x/_te\u017ft_a.py_",
}  # fmt: skip
PLAIN = [
    "artifacts/Makefile", "x/CMakeLists.txt", "x/pyproject.toml", "x/ahead", "x/HEAD.txt", "head/log.txt", "x/a.git",
    "x/test.py", "x/config.js", "x/git/config", "x/_.git_/config", "run.log", "x/latest.json",
]  # fmt: skip


def stored(intake: FolderIntake) -> list[str]:
    return sorted(p.relative_to(intake.root).as_posix() for p in intake.root.rglob("*") if p.is_file())


@pytest.mark.parametrize(("sent", "place"), [*ACTING.items(), *((name, name) for name in PLAIN)])
def test_a_name_that_acts_is_stored_under_one_that_does_not(intake: FolderIntake, sent: str, place: str) -> None:
    assert intake.accepts(sent, 5) is None
    intake.write(sent, 0, b"12")
    assert intake.size(sent) == 2, "asked for by the host's name, whatever it is called here"
    intake.write(sent, 2, b"345")
    assert intake.verified(wire.FileEntry(sent, 5, hashlib.sha256(b"12345").hexdigest()))
    assert (intake.root / place).read_bytes() == b"12345"
    assert stored(intake) == [place]
    stream, _ = safe_paths.open_result(intake.root, sent)
    assert stream.read() == b"12345", "as a record names it"
    stream.close()
    intake.discard(sent)
    assert stored(intake) == []


@pytest.mark.parametrize("name", ["x/.g\u200cit/config", "x/.git\u202e", "x/HE\ufeffAD", "x/fcctl\u200d.toml"])
def test_what_a_file_system_leaves_out_of_a_name_is_refused(intake: FolderIntake, name: str) -> None:
    assert intake.accepts(name) == "bad_name"


def test_the_names_are_remembered_when_a_collection_goes_on(intake: FolderIntake) -> None:
    intake.write("a/.git/config", 0, b"12")
    again = FolderIntake(intake.root, Limits())
    assert again.size("a/.git/config") == 2
    assert again.accepts("a/.git/config", 5) is None
    again.write("a/.git/config", 2, b"345")
    assert stored(again) == ["a/_.git_/config"]
    assert again.accepts("a/_.git_/config") == "collides", "one place, one file"
    assert again.accepts("a/.GIT/config") == "collides"
    assert again.renamed() == [("a/.git", "a/_.git_")]


def test_a_name_that_gets_too_long_is_refused(intake: FolderIntake) -> None:
    assert intake.accepts("." + "x" * 252) is None
    assert intake.accepts("." + "x" * 254) == "bad_name"
    assert intake.accepts("x" * 255) is None


def test_what_was_renamed_is_known_once_for_each_name(store: FileStore) -> None:
    run = begin(store)
    intake = run.intake()
    for name in ("artifacts/.git/config", "artifacts/.git/HEAD", "artifacts/plain", "steps/a/out/HEAD"):
        intake.write(name, 0, b"x")
    assert run.intake().renamed() == [
        ("artifacts/.git", "artifacts/_.git_"), ("steps/a/out/HEAD", "steps/a/out/_HEAD_"),
    ]  # fmt: skip


GIT = ["git", "-c", "init.defaultBranch=main", "-c", "user.name=n", "-c", "user.email=e@x"]


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GIT, *words], cwd=folder, capture_output=True, text=True, check=False)


def plant(intake: FolderIntake, fires: Path) -> None:
    """A repository that runs a command, as ``.git`` and as a bare one; and tests that one would collect."""
    config = f"[core]\n\tfsmonitor = touch {fires}\n\trepositoryformatversion = 0\n\tbare = false\n"
    bare = config + "\tworktree = .\n"
    for top, text in (("artifacts/.git", config), ("artifacts/bare", bare)):
        for name, content in (("HEAD", "ref: refs/heads/main\n"), ("config", text), ("objects/x", ""), ("refs/x", "")):
            intake.write(f"{top}/{name}", 0, content.encode())
    for name in ("artifacts/conftest.py", "artifacts/test_x.py", "artifacts/x_test.py"):
        intake.write(name, 0, f"import pathlib; pathlib.Path({str(fires)!r}).touch()\n".encode())


@pytest.mark.parametrize("fresh", [True, False], ids=["as init makes it", "without a .gitignore"])
def test_no_git_and_no_pytest_runs_what_a_host_sent(tmp_path: Path, fresh: bool) -> None:
    """With the real programs, in the folders themselves and in the workspace around them."""
    assert git(tmp_path, "init").returncode == 0
    if fresh:
        init(tmp_path)
    run = begin(FileStore(tmp_path / "results", SystemClock()))
    fires = tmp_path / "fired"
    plant(run.intake(), fires)
    folder = run.complete(make_record(run.run_id))
    for place in (folder / "artifacts", folder / "artifacts" / "bare", folder / "artifacts" / "bare" / "refs"):
        git(place, "status")
        git(place, "add", "-A", ".")
    assert git(tmp_path, "add", "-A").returncode == 0
    listed = git(tmp_path, "ls-files").stdout
    assert ("_.git_/config" not in listed and "fcctl.toml" in listed) if fresh else "_.git_/config" in listed
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]
    ran = subprocess.run(tests, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ})
    assert ran.returncode == 5, ran.stdout  # no tests
    assert not fires.exists()
