"""``fcctl run --rev``: the source of a branch, a tag or a commit, while the working tree has something else."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from orchestrator.base.git import git_environment
from tests.support.scripts import script
from tests.support.sshd import LoopbackSshd
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

JOB = """
steps:
  - id: show
    run: |
      echo "kernel $(cat csrc/kernel.cu)"
      object="$FCCTL_CACHE/kernel.o"
      if [ csrc/kernel.cu -nt "$object" ]; then cp csrc/kernel.cu "$object"; echo compiled; fi
      find . -type f | sort > "$FCCTL_OUT/files.txt"
"""


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always")
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, env=git_environment(may_fetch=True), check=True, capture_output=True
    )
    return done.stdout.decode().strip()


def commit(folder: Path, **files: str) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", f"{files}", "--allow-empty")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder of a repository with a submodule; the workspace will be its folder ``kernels``."""
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main")
    commit(library, header="library 1\n")
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    git(root, "submodule", "--quiet", "add", str(library), "kernels/third_party")
    (root / ".gitattributes").write_text("*.bin filter=lfs\n")
    return root


@pytest.fixture
def workspace(repository: Path, private_home: Path, sshd: LoopbackSshd, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    temporary = private_home / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    made = Workspace(repository / "kernels", private_home, sshd)
    made.job("show", JOB)
    return made


def state(repository: Path) -> list[str]:
    outside = ("--", ".", ":!kernels/results")
    return [
        git(repository, *words)
        for words in (("status", "--porcelain", *outside), ("worktree", "list"), ("stash", "list"))
    ]


def left() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("fcctl-revision-*"))


@pytest.fixture(autouse=True)
def _temporary(private_home: Path, monkeypatch: pytest.MonkeyPatch, workspace: Workspace) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(private_home / "tmp"))


def test_a_revision_runs_and_the_working_tree_is_not_touched(workspace: Workspace, repository: Path) -> None:
    old = commit(repository, **{"kernels/csrc/kernel.cu": "old", "kernels/a.txt": "a\n"})
    git(repository, "tag", "v1")
    library = repository / "kernels/third_party"
    commit(library, header="library 2\n")
    workspace.job("show", JOB + "  - {id: more, run: cat third_party/header}\n")
    new = commit(repository, **{"kernels/csrc/kernel.cu": "new"})
    (workspace.root / "csrc/kernel.cu").write_text("edited")
    (workspace.root / "untracked.cu").write_text("untracked")
    before = state(repository)

    done = workspace.fcctl("run", "show", "--on", "box", "--rev", "v1")
    record = workspace.only_run()
    assert (record["source"]["git_commit"], record["source"]["dirty"]) == (old, False)
    assert [step["id"] for step in record["steps"]] == ["show"]  # the job as it was then
    assert "kernel old" in workspace.fcctl("logs", "last").stdout
    files = (workspace.only_folder() / "steps/show/out/files.txt").read_text()
    assert "./third_party/header" in files
    assert "untracked" not in files
    assert f"revision v1, commit {old[:10]}" in done.stderr

    planned = workspace.json("run", "show", "--on", "box", "--rev", "main", "--dry-run")
    assert (planned["source"]["git_commit"], planned["source"]["dirty"]) == (new, False)
    assert state(repository) == before
    assert (workspace.root / "csrc/kernel.cu").read_text() == "edited"
    assert left() == []

    def compiled(revision: str) -> bool:
        workspace.fcctl("run", "show", "--on", "box", "--rev", revision)
        return "compiled" in workspace.fcctl("logs", "last").stdout

    # A build that outlives runs goes by times: a file is new if its content is, whatever the revision's age.
    assert [compiled(revision) for revision in ("v1", "main", "main", "v1")] == [False, True, False, True]

    shutil.rmtree(repository / ".git/modules/kernels/third_party")
    shutil.rmtree(library)
    assert "third_party: a submodule that is not checked out" in workspace.fcctl(
        "run", "show", "--on", "box", "--rev", "v1").stderr  # fmt: skip


def test_launched_detached_and_repeated(workspace: Workspace, repository: Path) -> None:
    commit(repository, **{"kernels/csrc/kernel.cu": "one"})
    git(repository, "branch", "one")
    (workspace.root / "csrc/kernel.cu").write_text("edited")
    run_id = workspace.json("run", "show", "--on", "box", "--rev", "one", "--detach")["run_id"]
    assert left() == []
    workspace.fcctl("attach", run_id)
    workspace.fcctl("run", "show", "--on", "box", "--rev", "one", "--repeat", "2")
    (commits,) = {(run["source"]["git_commit"], run["source"]["dirty"]) for run in workspace.runs().values()}
    assert commits == (git(repository, "rev-parse", "one"), False)
    assert len(workspace.runs()) == 3


def test_a_message_names_a_commit_and_no_hook_runs(workspace: Workspace, repository: Path) -> None:
    old = commit(repository, **{"kernels/csrc/kernel.cu": "one"})
    commit(repository, **{"kernels/csrc/kernel.cu": "two"})
    script(repository / ".git/hooks/post-index-change", f"touch {repository}/hooked")
    planned = workspace.json("run", "show", "--on", "here", "--rev", ":/one", "--dry-run")
    assert planned["source"]["git_commit"] == old
    assert not (repository / "hooked").exists()


def test_a_killed_fcctl_leaves_no_folder(workspace: Workspace, repository: Path) -> None:
    commit(repository, **{"kernels/csrc/kernel.cu": "one"})
    assert workspace.killed("after", 2, "run", "show", "--on", "box", "--rev", "HEAD") == -signal.SIGKILL
    wait_for(lambda: left() == [])
    workspace.fcctl("ps")
    assert workspace.only_run()["status"] == "error"


def test_a_job_that_the_revision_lacks_is_the_working_trees(workspace: Workspace, repository: Path) -> None:
    commit(repository, **{"kernels/csrc/kernel.cu": "one"})
    workspace.job("later", "steps:\n  - {id: a, run: cat csrc/kernel.cu; test ! -e jobs/later.yaml}\n")
    done = workspace.fcctl("run", "later", "--on", "box", "--rev", "main")
    assert "revision main has no job 'later': fcctl uses that of the working tree" in done.stderr


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def test_large_files_come_by_the_filter_or_are_named(workspace: Workspace, repository: Path) -> None:
    workspace.job("show", "steps: [{id: show, run: cat weights.bin}]\n")
    commit(repository, **{"kernels/weights.bin": LFS})
    done = workspace.fcctl("run", "show", "--on", "here", "--rev", "main")
    assert "not sent: weights.bin: only its Git LFS pointer is in the workspace" in done.stderr
    git(repository, "config", "filter.lfs.required", "true")
    git(repository, "config", "filter.lfs.smudge", "sed s/version/fetched/")
    done = workspace.fcctl("run", "show", "--on", "here", "--rev", "main")
    assert "fetched https" in workspace.fcctl("logs", "last").stdout
    assert "pointer" not in done.stderr
    git(repository, "config", "filter.lfs.smudge", "false")
    failed = workspace.fcctl("run", "show", "--on", "here", "--rev", "main", check=3)
    assert "cannot write the files of revision 'main'" in failed.stderr
    assert "weights.bin" in failed.stderr
    assert "git lfs fetch --all" in failed.stderr
    assert left() == []


def test_a_job_file_of_the_revision_that_is_wrong(workspace: Workspace, repository: Path) -> None:
    workspace.job("show", "steps: [{id: show, rum: ls}]\n")
    commit(repository)
    workspace.job("show", JOB)
    done = workspace.fcctl("run", "show", "--on", "here", "--rev", "main", check=3)
    assert "error: revision main: " in done.stderr
    assert "jobs/show.yaml:2: unknown key 'rum'" in done.stderr


#: What ``--rev`` was given, what the message says, and a part of the hint.
NO_REVISIONS = [
    ("v2", "no revision 'v2'", "did you mean --rev v1?"),
    ("feature", "no revision 'feature'", "did you mean --rev origin/feature?"),
    ("nothing-like-it", "no revision 'nothing-like-it'", "git fetch origin nothing-like-it, then: --rev FETCH"),
    ("f" * 40, f"no revision '{'f' * 40}'", "git fetch origin ffff"),
    ("HEAD~99", "no revision 'HEAD~99'", "give a branch, a tag or a commit: git log --oneline --all"),
    ("^main", "'^main' is not a revision", "git log --oneline"),
    ("first", "the revision 'first' has no folder kernels/", "git log --oneline -- kernels/"),
    ("main:kernels", "'main:kernels' is not a revision", "git log --oneline"),
    ("", "'' is not a revision", "git log --oneline"),
]


def test_a_revision_that_is_none(workspace: Workspace, repository: Path) -> None:
    git(repository, "tag", "first", git(repository, "commit-tree", "-m", "x", git(repository, "mktree")))
    commit(repository, **{"kernels/csrc/kernel.cu": "one"})
    git(repository, "tag", "v1")
    git(repository, "update-ref", "refs/remotes/origin/feature", "HEAD")
    for revision, message, hint in NO_REVISIONS:
        done = workspace.fcctl("run", "show", "--on", "here", "--rev", revision, "--json", check=7)
        error = json.loads(done.stderr)["error"]
        assert error["message"] == message
        assert hint in error["hint"]
        assert error["cause"] or revision in ("", "^main")
        assert left() == []


def test_a_clone_that_lacks_commits_and_a_folder_that_is_none(
    tmp_path: Path, private_home: Path, repository: Path
) -> None:
    commit(repository, a="one")
    commit(repository, a="two")
    shallow, empty, plain = (tmp_path / name for name in ("shallow", "empty", "plain"))
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), str(shallow))
    empty.mkdir()
    git(empty, "init", "-q")
    for folder, revision, code, hint in (
        (shallow, "HEAD~1", 7, "git fetch --unshallow"), (empty, "HEAD", 7, "git commit"),
        (plain, "main", 3, "run without --rev, or: git init"),
    ):  # fmt: skip
        made = Workspace(folder, private_home)
        made.job("show", JOB)
        said = made.fcctl("run", "show", "--on", "here", "--rev", revision, check=code).stderr
        assert hint in said
    assert "--rev main needs a git repository" in said


def test_the_search_of_a_revision(workspace: Workspace, repository: Path) -> None:
    workspace.write_search("sum", 'parameters: {A: [1, 2]}\ncheck: "true"\nserve: "true"\n')
    commit(repository, **{"kernels/csrc/kernel.cu": "one"})
    (workspace.root / "tune/sum.yaml").unlink()
    workspace.fcctl("tune", "sum", "--on", "here", "--dry-run", check=7)
    planned = workspace.json("tune", "sum", "--on", "here", "--dry-run", "--rev", "HEAD")
    assert planned["source"]["dirty"] is False
