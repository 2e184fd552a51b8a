"""The source as git sees it, on real repositories."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from orchestrator.base.errors import ConfigError, ConflictError
from orchestrator.runs import git_source
from orchestrator.runs import source as source_hashes
from orchestrator.runs.git_source import GitSource
from orchestrator.runs.source import Source
from tests.support.repository import commit, git, write
from tests.support.scripts import script

pytestmark = pytest.mark.usefixtures("private_home")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return commit(tmp_path / "repo", a_dot_cu="a", sub__b_dot_cu="b", _dot_gitignore="*.o\nresults/\n")


def instead_of_git(patch: pytest.MonkeyPatch, program: Path) -> None:
    patch.setattr(shutil, "which", lambda _name: str(program))


def read(root: Path) -> Source:
    return GitSource().read(root)


def paths(source: Source) -> list[str]:
    return [entry.path for entry in source.entries]


def test_tracked_and_untracked_but_not_ignored(repo: Path) -> None:
    write(repo, new_dot_cu="n", junk_dot_o="o")
    source = read(repo)
    assert paths(source) == [".gitignore", "a.cu", "new.cu", "sub/b.cu"]
    assert source.git_commit == git(repo, "rev-parse", "HEAD")
    assert source.dirty
    entry = source.entries[1]
    assert (entry.sha256, entry.size, entry.executable) == (hashlib.sha256(b"a").hexdigest(), 1, False)


OF_THIS_COMPUTER = {
    ".venv/pyvenv.cfg": "", ".venv/bin/python": "", "deep/env/pyvenv.cfg": "", "deep/env/lib/x.py": "", "deep/y.cu": "",
    "build/CMakeCache.txt": "", "build/app": "", "sub/CMakeCache.txt": "", "sub/CMakeFiles/x": "", "sub/new.cu": "",
    "CMakeCache.txt": "", "CMakeFiles/x": "", "builder/x.cu": "",
}  # fmt: skip
SAID = (
    ".venv: a virtual environment of this computer", "CMakeCache.txt: CMake's cache of this computer",
    "build: CMake's build folder of this computer", "deep/env: a virtual environment of this computer",
    "sub/CMakeCache.txt: CMake's cache of this computer",
)  # fmt: skip


@pytest.mark.parametrize("is_repository", [True, False])
def test_what_is_of_use_on_this_computer_alone_stays_here(repo: Path, is_repository: bool) -> None:
    """A virtual environment and what CMake made hold this computer's paths; sources beside them are sent."""
    write(repo, sub__CMakeLists_dot_txt="project(p)")
    git(repo, "add", "sub/CMakeLists.txt")
    for name, text in OF_THIS_COMPUTER.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    if not is_repository:
        shutil.rmtree(repo / ".git")
    source = read(repo)
    sent = [".gitignore", "a.cu", "builder/x.cu", "deep/y.cu", "sub/CMakeLists.txt", "sub/b.cu", "sub/new.cu"]
    assert (paths(source), source.skipped) == (sent, SAID)


def test_what_is_tracked_is_sent_whatever_it_is(repo: Path) -> None:
    write(repo, env__pyvenv_dot_cfg="", env__x="")
    git(repo, "add", "-A")
    write(repo, env__new="")
    source = read(repo)
    assert paths(source)[2:5] == ["env/new", "env/pyvenv.cfg", "env/x"]
    assert source.skipped == ()


def test_clean_then_modified(repo: Path) -> None:
    before = read(repo)
    assert not before.dirty
    write(repo, a_dot_cu="changed")
    assert read(repo).dirty
    git(repo, "checkout", "a.cu")
    (repo / "a.cu").chmod(0o755)
    after = read(repo)
    assert after.entries[1].executable
    assert before.tree_sha256 != after.tree_sha256


def test_deleted_but_tracked_is_left_out_and_attributes_are_no_link_to_something_endless(repo: Path) -> None:
    """Git does not follow it either."""
    (repo / "a.cu").unlink()
    (repo / ".gitattributes").symlink_to("/dev/zero")
    assert paths(read(repo)) == [".gitignore", "sub/b.cu"]


def test_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, a="1")
    source = read(tmp_path)
    assert (paths(source), source.git_commit, source.dirty) == (["a"], None, False)


def test_workspace_below_the_repository_root(repo: Path) -> None:
    source = read(repo / "sub")
    assert paths(source) == ["b.cu"]
    assert source.git_commit


def test_what_building_this_project_leaves_is_not_sent(repo: Path) -> None:
    """By the rules that this repository has for git, wherever somebody builds in it."""
    shutil.copy(Path(__file__).parents[3] / ".gitignore", repo)
    left = ("kernels/build/flashcore/wmma.so", "build/flashcore/wmma/log.txt", "kernels/flashcore/wmma.so",
            "kernels/flashcore/__pycache__/build.pyc", "dist/fcctl.whl", "x.egg-info/PKG-INFO")  # fmt: skip
    kept = ("kernels/flashcore/build.py", "kernels/flashcore/csrc/wmma.cu")
    for name in (*left, *kept):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(name)
    assert not set(left) & set(paths(read(repo)))
    assert set(kept) <= set(paths(read(repo)))


def test_workspace_that_the_repository_above_ignores(repo: Path) -> None:
    write(repo, results__own__k_dot_cu="k")
    source = read(repo / "results" / "own")
    assert (paths(source), source.git_commit) == (["k.cu"], None)


def test_a_git_that_ctrl_c_has_ended_is_no_mistake_of_the_repository(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead_of_git(monkeypatch, script(tmp_path / "git", "kill -INT $$"))
    with pytest.raises(KeyboardInterrupt):
        read(repo)


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a_dot_cu="a", build__x="x", x_dot_pyc="", results__runs__r="1", sub__b="b")
    (tmp_path / "link").symlink_to("sub")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert paths(read(tmp_path)) == ["a.cu", "link", "sub/b"]
    write(tmp_path, results___dot_gitignore="runs/")  # fcctl's own
    assert paths(read(tmp_path)) == ["a.cu", "link", "results/.gitignore", "sub/b"]
    write(tmp_path, sub___dot_gitignore="secret.env\n", sub__secret_dot_env="token")
    with pytest.raises(ConfigError, match=r"cannot read sub/\.gitignore: git is not installed") as refused:
        read(tmp_path)
    assert "install" in str(refused.value.hint)


def test_what_fcctl_writes_itself_is_left_out(repo: Path) -> None:
    write(repo, _dot_gitignore="", results__runs__r__run="1", results__active__x="1", _dot_fcctl__cache="1")
    write(repo, results__notes_dot_md="kept")
    assert paths(read(repo)) == [".gitignore", "a.cu", "results/notes.md", "sub/b.cu"]


def test_submodule_and_nested_repository(repo: Path, tmp_path: Path) -> None:
    lib = commit(tmp_path / "lib", lib_dot_cu="l", _dot_gitignore="*.tmp\n")
    write(lib, skip_dot_tmp="s")
    git(repo, "submodule", "--quiet", "add", str(lib), "third/lib")
    shutil.copytree(lib, repo / "nested")
    found = paths(read(repo))
    assert {"third/lib/lib.cu", "nested/lib.cu", ".gitmodules"} <= set(found)
    assert not any(path.endswith(".tmp") or ".git/" in path for path in found)


def test_what_was_not_fetched_is_told(repo: Path, tmp_path: Path) -> None:
    """A clone without --recursive, and without git-lfs: the build there will miss what is missing here."""
    git(repo, "submodule", "--quiet", "add", str(commit(tmp_path / "lib", lib_dot_cu="l")), "third/lib")
    git(repo, "submodule", "--quiet", "deinit", "-f", "third/lib")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    write(repo, _dot_gitattributes="*.bin filter=lfs diff=lfs merge=lfs -text\n", w_dot_bin=pointer, x_dot_bin="here")
    source = read(repo)
    assert source.skipped == (
        "third/lib: a submodule that is not checked out (git submodule update --init)",
        "w.bin: only its Git LFS pointer is in the workspace (to fetch the file: git lfs pull)",
    )
    assert "w.bin" in paths(source)


def test_links_stay_inside_or_are_skipped(repo: Path) -> None:
    (repo / "inside").symlink_to("sub/../a.cu")
    (repo / "dangling").symlink_to("nowhere")
    (repo / "absolute").symlink_to("/etc/passwd")
    (repo / "climbing").symlink_to("../../etc")
    (repo / "sub" / "up").symlink_to("..")
    (repo / "sly").symlink_to("sub/up/../..")
    source = read(repo)
    links = {entry.path: entry.link for entry in source.entries if entry.link}
    assert links == {"inside": "sub/../a.cu", "dangling": "nowhere", "sub/up": ".."}
    assert sorted(note.split(":")[0] for note in source.skipped) == ["absolute", "climbing", "sly"]
    entry = next(entry for entry in source.entries if entry.path == "inside")
    assert entry.sha256 == hashlib.sha256(b"sub/../a.cu").hexdigest()


def test_sockets_fifos_and_odd_names_are_skipped_with_a_note(repo: Path) -> None:
    git(repo, "config", "core.quotePath", "false")
    os.mkfifo(repo / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        cwd = os.getcwd()
        os.chdir(repo)
        try:
            server.bind("sock")
        finally:
            os.chdir(cwd)
        (repo / "new\nline").write_text("x")
        (repo / os.fsdecode(b"latin\xe9")).write_text("x")
        (repo / "ünïcödé 'q\" -x").write_text("kept")
        (repo / "-dash").write_text("kept")
        source = read(repo)
    assert {"ünïcödé 'q\" -x", "-dash"} <= set(paths(source))
    notes = "\n".join(source.skipped)
    assert "control character" in notes
    assert "UTF-8" in notes
    assert all(note.isprintable() for note in source.skipped)
    assert not {"pipe", "sock"} & set(paths(source))


def test_unreadable_file_is_a_note(repo: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root reads everything")
    (repo / "a.cu").chmod(0)
    assert any("permission" in note for note in read(repo).skipped)


def test_merge_conflict_lists_a_file_once(repo: Path) -> None:
    git(repo, "checkout", "-q", "-b", "other")
    commit(repo, a_dot_cu="theirs")
    git(repo, "checkout", "-q", "main")
    commit(repo, a_dot_cu="ours")
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "merge", "-q", "other")
    source = read(repo)
    assert paths(source).count("a.cu") == 1
    assert source.dirty


def test_environment_of_a_hook_is_ignored(repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", "/dev/null")
    assert "a.cu" in paths(read(repo))


def test_broken_repository_says_so(repo: Path) -> None:
    (repo / ".git" / "config").write_text("[broken")
    with pytest.raises(ConfigError, match="git cannot read"):
        read(repo)


def test_a_macs_git_without_its_tools_names_what_installs_them(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "xcode-select: note: No developer tools were found, requesting install."
    instead_of_git(monkeypatch, script(tmp_path / "git", f"echo '{said}' >&2\nexit 1"))
    with pytest.raises(ConfigError, match="git cannot read") as refused:
        read(repo)
    assert refused.value.hint == "xcode-select --install"


# ------------------------------------------------------------------------------------------------ the hashes
def test_unchanged_files_are_not_read_again(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time.sleep(0.12)
    first = read(repo)
    monkeypatch.setattr(source_hashes, "_digest", lambda *_: pytest.fail("read again"))
    assert read(repo) == first


def test_same_size_and_mtime_but_other_content_is_noticed(repo: Path) -> None:
    time.sleep(0.12)
    facts = (repo / "a.cu").stat()
    before = read(repo).tree_sha256
    (repo / "a.cu").write_text("z")
    os.utime(repo / "a.cu", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert read(repo).tree_sha256 != before


def test_broken_cache_is_ignored(repo: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    time.sleep(0.12)
    before = GitSource(cache).read(repo).tree_sha256
    assert list(cache.iterdir())
    for broken in ('{"a.cu": 3}', "not json"):
        for file in cache.iterdir():
            file.write_text(broken)
        assert GitSource(cache).read(repo).tree_sha256 == before


def test_file_that_changes_while_read(repo: Path) -> None:
    changing = repo / "log"
    changing.write_bytes(b"x" * 4_000_000)
    stop = threading.Event()

    def change() -> None:
        for size in itertools.cycle((4_000_001, 4_000_002)):  # the kernel makes who writes much wait, now and then
            os.truncate(changing, size)
            if stop.is_set():
                return

    def read_again_and_again() -> None:
        while True:  # on a busy machine nobody may change it just then
            read(repo)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with pytest.raises(ConflictError, match="log"):
            read_again_and_again()
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("broken", ["cache", "cache/no-repository", "cache/no-repository/refs"])
def test_what_git_needs_to_look_at_a_folder_without_a_repository(tmp_path: Path, broken: str) -> None:
    """It stays in the cache, so that no kill leaves a temporary folder behind; where it cannot be, the same is read."""
    folder, cache = tmp_path / "plain", tmp_path / "cache"
    write(folder, a_dot_cu="a", b_dot_o="b", _dot_gitignore="*.o\n")
    for _ in range(2):
        assert [e.path for e in GitSource(cache).read(folder).entries] == [".gitignore", "a.cu"]
    assert sorted(p.name for p in (cache / "no-repository").iterdir()) == ["HEAD", "objects", "refs"]
    shutil.rmtree(cache)
    (tmp_path / broken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / broken).write_text("a file is in the way")
    assert [e.path for e in GitSource(cache).read(folder).entries] == [".gitignore", "a.cu"]


def test_a_folder_of_a_clone_that_looks_like_a_bare_repository_starts_no_program(repo: Path, tmp_path: Path) -> None:
    """Git would take the folder for a repository, and start what its `config` names."""
    fired = tmp_path / "fired"
    commit(
        repo, bare__HEAD="ref: refs/heads/main\n", bare__objects__x="", bare__refs__x="", bare__tree__a_dot_cu="a",
        bare__config='[core]\n\tbare = false\n'
        f'\tworktree = "{tmp_path}/clone/bare/tree"\n\tfsmonitor = "touch {fired}; :"\n',
    )  # fmt: skip
    git(tmp_path, "clone", "-q", str(repo), "clone")
    source = read(tmp_path / "clone/bare/tree")
    assert (paths(source), source.git_commit) == (["a.cu"], None)
    assert not fired.exists()


def test_more_files_than_a_call_can_name_are_refused_before_anything_starts(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host program ends at such a call, and fcctl would call again for ten minutes."""
    size = len(json.dumps([entry.__dict__ for entry in read(repo).entries], separators=(",", ":")))
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", size)
    read(repo)
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", size - 1)
    with pytest.raises(ConfigError, match="the source has too many files: 3") as refused:
        read(repo)
    assert ".gitignore" in (refused.value.hint or "")


def test_what_a_git_that_hangs_has_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_source, "GIT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(subprocess.Popen, "communicate", _bounded(subprocess.Popen.communicate))
    words = ["/bin/sh", "-c", "sleep 300 & sleep 300"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        with pytest.raises(ConfigError, match="git did not answer"):
            git_source._finish(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _bounded(communicate: Any) -> Any:
    """In place of a wait for ever, which would end no test."""

    def within(self: Any, *words: Any, timeout: float = 60.0) -> Any:
        return communicate(self, *words, timeout=timeout)

    return within
