"""A step puts something else in the place of the host program's own files: a FIFO, a link to an endless file, a device,
a folder, a socket, a huge file, JSON of another kind. Every call is answered, and no other run is held up."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fcctl_remote import wire
from fcctl_remote.base import files
from tests.integration.host_program.agent_client import Agent, CallFailed, Host, step
from tests.support.waiting import wait_for


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


def _socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # its whole path is too long for a socket's name
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "elsewhere": lambda path: path.symlink_to("nowhere/at/all"),
    "device": _device,
    "folder": _folder,
    "socket": _socket,
    "huge": _huge,
    "list": lambda path: path.write_text("[1, 2]\n") and None,
    "deep": lambda path: path.write_text("[" * 100_000) and None,
    "number": lambda path: path.write_text('{"pid": ' + "9" * 1_000_000 + "}\n") and None,
    "nan": lambda path: path.write_text('{"time": NaN, "created": Infinity}\n') and None,
}
SOME = [kind if kind in ("fifo", "endless", "folder") else pytest.param(kind, marks=pytest.mark.full) for kind in KINDS]
ONE = [kind if kind == "fifo" else pytest.param(kind, marks=pytest.mark.full) for kind in KINDS]
#: Below the run's folder.
OF_A_RUN = (
    "events.jsonl", "telemetry.jsonl", "heartbeat.json", "outcome.json", "plan.json", "submission.json",
    "snapshot.json", "cancel.json", "supervisor.lock", "supervisor.log", "submit.lock", "reserve", "steps/a/log.txt",
    "steps/a/out", "steps/a", "steps", "artifacts", "bin",
)  # fmt: skip
#: Below the host program's root folder.
OF_THE_HOST = (
    "facts.json", "lease.json", "locks/lease.lock", "locks/queue.lock", "locks/tidied",
    "locks/tree-ws.lock", "trees/.index/ws.json",
)  # fmt: skip


def plant(kind: str, path: Path) -> None:
    """Made elsewhere and moved: the telemetry of a run at work makes its file anew each second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.made")
    KINDS[kind](made)
    while made.exists() or made.is_symlink():
        clear(path)
        with contextlib.suppress(NotADirectoryError, IsADirectoryError):  # of what was made there meanwhile
            made.rename(path)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


@pytest.fixture
def host(host: Host) -> Iterator[Host]:
    yield host
    clear(host.root / "facts.json")  # which is kept for the next test


def ask_everything(agent: Agent, run_id: str, name: str) -> None:
    """Each call that a controller makes about a run, and about all of them. One may be refused, in words."""
    agent.call("status", {"run_ids": None})
    (summary,) = agent.call("status", {"run_ids": [run_id]})["runs"]
    assert summary["run_id"] == run_id
    for offset, log in ((0, "a"), (0, "@current"), (1 << 50, "a")):
        request = wire.WatchRequest(run_id, log_step=log, log_offset=offset, events_offset=offset, wait_s=0.05)
        result, blob = agent.call_blob("watch", wire.encode(request))
        assert len(blob) <= 1 << 20
        json.dumps(result, allow_nan=False)
    listing = agent.call("files", {"run_id": run_id})
    assert all(entry["size"] < 1 << 30 for entry in listing["files"])
    with contextlib.suppress(CallFailed):
        agent.call_blob("fetch", {"run_id": run_id, "parts": [{"path": "events.jsonl", "offset": 0, "size": 100}]})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Agent, str]]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: make setup installs it")
    host = Host(tmp_path_factory.mktemp("h"))
    agent = host.agent()
    agent.call("hello")
    run_id = agent.passed(step("a", "echo said; touch $FCCTL_ARTIFACTS/kept"))
    host.wait_until_closed(run_id)  # nothing is deleted or made while the folder is copied
    yield host, agent, run_id
    host.close()


@pytest.mark.parametrize("kind", SOME)
def test_a_finished_run_answers_whatever_stands_in_the_place_of_its_files(
    finished: tuple[Host, Agent, str], kind: str
) -> None:
    host, agent, run_id = finished
    folder = host.run_dir(run_id)
    for name in OF_A_RUN:
        shutil.copytree(folder, folder.with_name(".kept"), symlinks=True)
        plant(kind, folder / name)
        ask_everything(agent, run_id, name)
        shutil.rmtree(folder)
        folder.with_name(".kept").rename(folder)
    folder.rename(folder.with_name(".kept"))
    plant(kind, folder)
    for params in ({"run_ids": None}, {"run_ids": [run_id]}):
        assert agent.call("status", params) == {"runs": []}
    clear(folder)
    folder.with_name(".kept").rename(folder)


@pytest.mark.parametrize("kind", SOME)
def test_a_finished_run_is_deleted_whatever_is_in_it(
    finished: tuple[Host, Agent, str], kind: str, tmp_path: Path
) -> None:
    host, agent, run_id = finished
    folder = host.run_dir(run_id)
    shutil.copytree(folder, folder.with_name(".kept"), symlinks=True)
    (tmp_path / "precious").touch()
    (folder / "artifacts/link").symlink_to(tmp_path)
    for name in OF_A_RUN:
        if name not in ("steps/a", "steps"):
            plant(kind, folder / name)
    agent.call("forget", {"run_id": run_id})
    assert not folder.exists()
    assert (tmp_path / "precious").exists()
    assert agent.call("status", {"run_ids": None})["runs"] == []
    folder.with_name(".kept").rename(folder)


@pytest.mark.parametrize("names", ["plan.json", "plan.json events.jsonl", "*.json"])
def test_a_run_whose_step_deletes_what_it_is_known_by_is_known(host: Host, agent: Agent, names: str) -> None:
    run_id = agent.submit(step("a", f"cd ..; rm -f {names}; {GO.replace('../', '')}"))
    folder = host.run_dir(run_id)
    wait_for(lambda: (folder / "steps/a/log.txt").exists() and (folder / "steps/a/log.txt").read_bytes())
    ask_everything(agent, run_id, "a live run")
    (folder / "go").touch()
    assert agent.outcome(run_id).status == "passed"


def test_a_step_that_writes_how_far_its_run_is_ends_no_watch(host: Host, agent: Agent) -> None:
    """A step of no such name, or an end that is none, kept every watch from being answered as long as it ran."""
    run_id = agent.submit(step("a", GO))
    folder = host.run_dir(run_id)
    wait_for(lambda: (folder / "steps/a/log.txt").exists() and (folder / "steps/a/log.txt").read_bytes())
    state = json.loads((folder / "heartbeat.json").read_bytes())
    for forged in ({"step": "../b"}, {"step": "\ud800"}, {"status": "passed"}, {"status": "odd"}):

        def is_taken_as_nothing(forged: dict[str, str] = forged) -> bool:
            (folder / "heartbeat.json").write_text(json.dumps({**state, "summary": {**state["summary"], **forged}}))
            ask_everything(agent, run_id, "a live run")
            (summary,) = agent.call("status", {"run_ids": [run_id]})["runs"]
            return (summary["status"], summary["step"]) == ("running", None)

        wait_for(is_taken_as_nothing)  # the supervisor writes it anew each second
    (folder / "go").touch()
    assert agent.outcome(run_id).status == "passed"


GO = "echo up; until [ -e ../go ]; do sleep 0.02; done; echo over"


@pytest.mark.parametrize("kind", ONE)
def test_a_run_whose_step_replaces_everything_ends_and_holds_up_no_other(host: Host, agent: Agent, kind: str) -> None:
    run_id = agent.submit(step("a", GO, retries=1), step("b", "echo second"))
    folder = host.run_dir(run_id)
    log = folder / "steps/a/log.txt"
    wait_for(lambda: log.exists() and b"up" in log.read_bytes())
    for name in (*OF_A_RUN, "steps/b", "steps/b/log.txt", "steps/b/out"):
        # Who deletes the lock is taken for dead, and a plan is not read again.
        if name not in ("steps/a", "steps", "steps/b", "supervisor.lock"):
            plant(kind, folder / name)
    for name in OF_THE_HOST:
        plant(kind, host.root / name)
    ask_everything(host.agent(), run_id, "a live run")
    (folder / "go").touch()
    wait_for(lambda: files.is_plain(str(folder / "outcome.json")) and _ended(agent, run_id))
    second = host.agent().submit(step("a", "echo fine"))
    assert agent.outcome(second).status == "passed"
    assert (host.run_dir(second) / "steps/a/log.txt").read_text() == "fine\n"
    assert agent.call("lease", wire.encode(wire.LeaseRequest("show")))["armed"] is False
    agent.call("forget", {"run_id": run_id})
    assert agent.call("status", {"run_ids": [run_id]})["runs"] == []


def _ended(agent: Agent, run_id: str) -> bool:
    (found,) = agent.call("status", {"run_ids": [run_id]})["runs"]
    return found["status"] in wire.RUN_ENDINGS and found["message"] != "outcome.json cannot be read"


def test_a_step_is_told_of_what_it_replaced_and_the_next_one_writes_files_again(host: Host, agent: Agent) -> None:
    evil = "cd $FCCTL_RUN_DIR; rm events.jsonl steps/a/log.txt; mkfifo events.jsonl steps/a/log.txt"
    run_id = agent.submit(step("a", evil), step("b", "echo fine"))
    outcome = agent.outcome(run_id)
    assert outcome.status == "passed"
    events, log = agent.follow(run_id, log_step="b")
    assert log == b"fine\n"
    (warning,) = [event.data["message"] for event in events if event.type == "warning"]
    assert (
        warning
        == "step 'a' replaced these files with something that is not a regular file: steps/a/log.txt, events.jsonl"
    )


def test_a_supervisor_that_is_killed_under_a_replaced_plan_leaves_a_lost_run(host: Host, agent: Agent) -> None:
    run_id = agent.submit(step("a", "mkfifo ../pipe; mv ../pipe ../plan.json; kill -9 $(cat ../supervisor.lock)"))
    assert agent.outcome(run_id).status == "lost"
    assert host.run_dir(run_id).exists()


@pytest.mark.full
def test_folders_deeper_than_any_path_can_name_end_and_go(host: Host, agent: Agent) -> None:
    deep = "import os\nfor _ in range(1200): os.mkdir('aaaa'); os.chdir('aaaa')\nopen('bottom', 'w').close()"
    run_id = agent.submit(step("a", f'cd "$FCCTL_ARTIFACTS"; "$FCCTL_PYTHON" -c "{deep}"'))
    try:
        assert agent.outcome(run_id).status == "passed"
        listed = agent.call("files", {"run_id": run_id})
        assert "bad_name" in {omitted["reason"] for omitted in listed["omitted"]}
        agent.call("forget", {"run_id": run_id})
        assert not host.run_dir(run_id).exists()
    finally:
        subprocess.run(["rm", "-rf", host.root / "runs"], check=True)  # pytest's own clean-up would fail at it


@pytest.mark.full
def test_more_names_than_an_answer_holds_are_counted(host: Host, agent: Agent) -> None:
    run_id = agent.passed(step("a", "echo said"))
    deep = host.run_dir(run_id) / "artifacts" / ("d" * 250) / ("e" * 250) / ("f" * 250)
    deep.mkdir(parents=True)
    for number in range(20_000):
        os.symlink("x", f"{deep}/{number:0100d}")
    listed = agent.call("files", {"run_id": run_id})
    assert "steps/a/log.txt" in {entry["path"] for entry in listed["files"]}
    *links, more = listed["omitted"]
    assert more == {"path": f"{20_000 - len(links)} more files", "reason": "too_large"}
    assert 10_000 < len(links) < 20_000


def test_a_damaged_program_of_fifos_starts_all_the_same(host: Host) -> None:
    copy = host.runner.with_suffix(".d")
    copy.unlink()  # what is damaged here is no other test's
    assert host.program("version").returncode == 0
    plant("fifo", copy / "fcctl_remote/wire.py")
    plant("huge", copy / "fcctl_remote/run/lost.py")
    done = host.program("version")
    assert done.returncode == 0, done.stderr
