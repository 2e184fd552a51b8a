"""A schedule at work: the real command, real runs on this computer, firings that are killed, and several at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import stat
import subprocess
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.files import user_folder
from orchestrator.schedules.due import Firing
from orchestrator.schedules.fire import FiringRecords
from orchestrator.schedules.os_scheduler import Entry
from tests.support.command import run_fcctl
from tests.support.money_world import World
from tests.support.shadows import shadow_stdlib
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

#: Where no month begins or ends for an hour at least, so that what was spent a minute ago was spent in this one.
ZONE = "UTC" if 1 <= datetime.now(UTC).hour < 23 else "Etc/GMT+12"
#: A step that goes on until there is a file ``WHEN``; as it stands, there is.
JOB = """
job: hello
steps:
  - id: greet
    run: until [ -e "$WHEN" ]; do sleep 0.1; done; echo hello
    env: {WHEN: /}
"""


@pytest.fixture
def fcctl(tmp_path: Path, private_home: Path) -> Callable[..., Any]:
    (tmp_path / "ws" / "jobs").mkdir(parents=True)
    (tmp_path / "ws" / "jobs" / "hello.yaml").write_text(JOB)
    (tmp_path / "ws" / "fcctl.toml").write_text('# mine\n[project]\nname = "ws"\n')

    def call(*arguments: str, code: int = 0) -> Any:
        done = run_fcctl("--json", *arguments, cwd=tmp_path / "ws")
        assert done.code == code, done
        return json.loads((done.out if code == 0 else done.err).splitlines()[-1])

    return call


@pytest.fixture
def records(tmp_path: Path) -> FiringRecords:
    return FiringRecords(tmp_path / "ws" / "results")


def due_now(records: FiringRecords, key: str = f"* * * * * {ZONE}", minutes: int = 2) -> None:
    """As if the schedule had been watched since a moment ago."""
    now = datetime.now(UTC).timestamp() - 60 * minutes
    records.append("often", ())  # makes the folder
    records._path("often").write_text("")
    records.append("often", (Firing(outcome="watching", due=now, at=now, key=key),))


def outcomes(records: FiringRecords) -> list[str]:
    return [f.outcome for f in records.read("often")]


def add(fcctl: Callable[..., Any], *more: str) -> None:
    fcctl(
        "schedule", "add", "often", "--cron", "* * * * *", "--job", "hello", "--on", "local", "--timezone", ZONE, *more
    )


def test_what_is_due_runs_and_its_record_says_how_it_went(fcctl: Any, records: FiringRecords) -> None:
    add(fcctl)
    assert [f["outcome"] for f in fcctl("schedule", "tick")["firings"]] == ["watching"]
    due_now(records)
    decided = [f["outcome"] for f in fcctl("schedule", "tick")["firings"]]
    assert decided[-1] == "started"
    wait_for(lambda: "finished" in outcomes(records))
    last = records.read("often")[-1]
    assert (last.status, last.exit_code) == ("passed", 0)
    assert [row["run_id"] for row in fcctl("results", "ls")["runs"]] == [last.run_id]
    row = fcctl("schedule", "ls")["schedules"][0]
    assert row["last"]["run_id"] == last.run_id
    assert len(row["next"]) == 3


def test_modules_of_the_user_s_folder_are_not_taken_for_python_s(
    fcctl: Any, records: FiringRecords, tmp_path: Path
) -> None:
    """Neither by a firing nor by what the computer's scheduler calls."""
    add(fcctl)
    due_now(records)
    shadow_stdlib(tmp_path / "ws")
    entry = Entry.of(tmp_path / "ws")
    done = subprocess.run(entry.argv, cwd=entry.folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    wait_for(lambda: "finished" in outcomes(records))
    assert records.read("often")[-1].status == "passed", records.log_path("often").read_text()


def test_a_firing_at_work_is_not_joined_by_another(fcctl: Any, records: FiringRecords, tmp_path: Path) -> None:
    add(fcctl, "--set", f"WHEN={tmp_path / 'never'}")
    due_now(records)
    assert fcctl("schedule", "tick")["firings"][-1]["outcome"] == "started"
    wait_for(lambda: records.at_work("often"))
    newest = records.read("often")[-1]
    past = newest.model_copy(update={"due": newest.due - 60, "outcome": "missed"})
    (records._path("often")).write_text("")
    records.append("often", (past, newest.model_copy(update={"due": newest.due - 60})))
    assert [f["outcome"] for f in fcctl("schedule", "tick")["firings"]][-1] == "overlap"
    wait_for(lambda: any(run["state"] == "followed" and run["summary"] for run in fcctl("ps")["runs"]))
    fcctl("cancel", "--all")
    wait_for(lambda: "finished" in outcomes(records))
    assert records.read("often")[-1].status == "cancelled"


def test_a_killed_firing_is_reported_and_its_run_is_picked_up(
    fcctl: Any, records: FiringRecords, tmp_path: Path
) -> None:
    add(fcctl, "--set", f"WHEN={tmp_path / 'go'}")
    due_now(records)
    fcctl("schedule", "tick")
    active = tmp_path / "ws" / "results" / "active"
    wait_for(lambda: any('"submitted"' in p.read_text() for p in active.glob("[!.]*/journal.jsonl")))
    lock = json.loads((tmp_path / "ws" / "results" / "schedules" / "often.firing.lock").read_text())
    os.killpg(lock["pid"], signal.SIGKILL)  # the firing and its `fcctl run`; the run itself is in its own session
    wait_for(lambda: not records.at_work("often"))
    (tmp_path / "go").touch()
    started = records.read("often")[-1]
    (records._path("often")).write_text("")
    records.append("often", (started.model_copy(update={"at": started.at - 600}),))

    def completed() -> bool:
        fcctl("schedule", "tick")
        return bool(fcctl("results", "ls")["runs"])

    wait_for(completed)
    assert "interrupted" in outcomes(records)
    assert fcctl("results", "ls")["runs"][0]["status"] == "passed"


def test_rm_leaves_the_file_as_it_was(fcctl: Any, tmp_path: Path) -> None:
    add(fcctl)
    fcctl("schedule", "rm", "often")
    assert (tmp_path / "ws" / "fcctl.toml").read_text() == '# mine\n[project]\nname = "ws"\n'
    assert fcctl("schedule", "rm", "often", code=7)["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("arguments", "code"), [(("--cron", "0 0 31 2 *"), 2), (("--cron", "@daily", "--per-month", "5"), 5)]
)
def test_what_cannot_work_is_not_written_down(
    fcctl: Any, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    before = (tmp_path / "ws" / "fcctl.toml").read_text()
    error = fcctl("schedule", "add", "n", "--job", "hello", "--on", "local", *arguments, code=code)["error"]
    assert error["message"]
    assert (tmp_path / "ws" / "fcctl.toml").read_text() == before


def test_a_tick_books_what_the_ledger_could_not_take_at_a_run_s_end(fcctl: Callable[..., Any], tmp_path: Path) -> None:
    """Else it would count with all that was reserved for it, in its schedule's month."""
    world = World(tmp_path / "ws", user_folder("state"))
    run = world.begun(1.0)
    run.active.complete(world.record(run, 0.1))
    assert list(world.in_the_book()) == [run.run_id]
    fcctl("schedule", "tick")
    assert world.in_the_book() == {}
    assert [usage.cost.usd for _, usage in world.book.state().runs().values()] == [0.1]


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    made.job("hello", "steps:\n  - {id: say, run: echo hello}\n")
    (made.root / "fcctl.toml").chmod(0o600)
    return made


def at_once(workspace: Workspace, *commands: list[str]) -> list[tuple[int, str]]:
    """What each of these ended with: its exit code, and what it said."""
    started = [workspace.start(*command) for command in commands]
    return [(process.returncode, said) for process in started for said in [process.communicate()[1]]]


def adding(name: str) -> list[str]:
    return ["schedule", "add", name, "--cron", "0 2 * * *", "--job", "hello", "--on", "here"]


def schedules(workspace: Workspace) -> set[str]:
    found: set[str] = set(tomllib.loads((workspace.root / "fcctl.toml").read_text()).get("schedules", {}))
    return found


def test_twelve_schedules_added_at_once(workspace: Workspace) -> None:
    before = (workspace.root / "fcctl.toml").read_text()
    names = [f"at{number}" for number in range(12)]
    done = at_once(workspace, *map(adding, names))
    assert [code for code, _ in done] == [0] * 12, done
    assert schedules(workspace) == set(names)
    assert (workspace.root / "fcctl.toml").read_text().startswith(before)
    assert stat.S_IMODE((workspace.root / "fcctl.toml").stat().st_mode) == 0o600
    removed = at_once(workspace, *(["schedule", "rm", name] for name in names[:2]), adding("more"))
    assert [code for code, _ in removed] == [0] * 3, removed
    assert schedules(workspace) == {*names[2:], "more"}
    assert not [name for name in os.listdir(workspace.root) if name.startswith(".fcctl")]


def test_one_schedule_added_four_times_at_once(workspace: Workspace) -> None:
    done = at_once(workspace, *[adding("same")] * 4)
    assert sorted(code for code, _ in done) == [0, 8, 8, 8], done
    assert all("already" in said for code, said in done if code)
    assert schedules(workspace) == {"same"}


def line(due: float, outcome: str = "started") -> Firing:
    return Firing(outcome=outcome, due=due, at=due, key="k")  # type: ignore[arg-type]


def write(folder: Path, who: int) -> None:
    for i in range(50):
        FiringRecords(folder).append("n", (line(who * 1000 + i),))


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    writers = [multiprocessing.get_context("spawn").Process(target=write, args=(tmp_path, w)) for w in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {f.due for f in FiringRecords(tmp_path).read("n")} == {w * 1000 + i for w in range(3) for i in range(50)}


def test_one_decides_and_one_fires(tmp_path: Path) -> None:
    one, other = FiringRecords(tmp_path), FiringRecords(tmp_path)
    with one.deciding() as first, other.deciding() as second:
        assert (first, second) == (True, False)
    with one.firing("n") as first:
        assert first
        assert other.at_work("n")
        assert not other.at_work("m")
    assert not other.at_work("n")
