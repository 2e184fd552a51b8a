"""``--json`` on every verb: one versioned document on standard output, or one error object on standard error."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from orchestrator.cli.main import VERBS, load
from tests.conftest import home_of_its_own
from tests.support.command import Outcome, run_fcctl
from tests.support.tiers import sampled
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

#: Every verb when it works: the exit code it may have, and a key its document holds.
WORKING: dict[str, tuple[tuple[str, ...], int, str]] = {
    "init": (("init", "new"), 0, "written"),
    "doctor": (("doctor",), 10, "findings"),
    "preflight": (("preflight", "--on", "here"), 1, "checks"),
    "run": (("run", "good", "--on", "here"), 0, "steps"),
    "run failed": (("run", "bad", "--on", "here"), 100, "steps"),
    "run planned": (("run", "good", "--on", "here", "--dry-run"), 0, "plan"),
    "tune planned": (("tune", "sum", "--on", "here", "--dry-run"), 0, "plan"),
    "ps": (("ps",), 0, "runs"),
    "ps offline": (("ps", "--offline"), 0, "runs"),
    "logs": (("logs", "last:good"), 0, "text"),
    "attach": (("attach", "last:good"), 0, "steps"),
    "attach failed": (("attach", "last:bad"), 100, "steps"),
    "cancel": (("cancel", "last:good"), 0, "runs"),
    "pull-results": (("pull-results",), 0, "pulled"),
    "results ls": (("results", "ls"), 0, "runs"),
    "results show": (("results", "show", "last:good"), 0, "run"),
    "results reindex": (("results", "reindex"), 0, "runs"),
    "results export": (("results", "export", "last:good"), 0, "run"),
    "results export file": (("results", "export", "last:good", "-o", "out.tar.zst"), 0, "written"),
    "results compare": (("results", "compare", "last:good", "last:bad"), 0, "benchmarks"),
    "results history": (("results", "history"), 0, "benchmarks"),
    "results tag": (("results", "tag"), 0, "tags"),
    "results tag given": (("results", "tag", "kept", "last:good"), 0, "done"),
    "results prune": (("results", "prune", "--older-than", "9y"), 0, "deleted"),
    "results import": (("results", "import", "runs.tar.zst"), 0, "here_already"),
    "jobs ls": (("jobs", "ls"), 0, "jobs"),
    "jobs show": (("jobs", "show", "good"), 0, "steps"),
    "jobs validate": (("jobs", "validate", "good"), 0, "valid"),
    "jobs validate wrong": (("jobs", "validate", "wrong"), 3, "valid"),
    "config show": (("config", "show"), 0, "values"),
    "config get": (("config", "get", "project.name"), 0, "value"),
    "config path": (("config", "path"), 0, "user"),
    "cost plan": (("cost", "plan", "good", "--on", "here"), 0, "activities"),
    "cost prices": (("cost", "prices"), 0, "regions"),
    "cost ledger": (("cost", "ledger"), 0, "totals"),
    "cost budget": (("cost", "budget"), 0, "caps"),
    "cost rebuild": (("cost", "rebuild"), 0, "unknown"),
    "hosts ls": (("hosts", "ls"), 0, "hosts"),
    "hosts audit": (("hosts", "audit"), 0, "machines"),
    "hosts up": (("hosts", "up", "here"), 0, "note"),
    "hosts down": (("hosts", "down", "here"), 0, "note"),
    "hosts prune": (("hosts", "prune"), 0, "snapshots"),
    "hosts prepare": (("hosts", "prepare", "here", "--dry-run"), 0, "steps"),
    "hosts exec": (("hosts", "exec", "--on", "here", "true"), 6, "hosts"),
    "hosts ssh-config": (("hosts", "ssh-config", "here", "--remove"), 0, "removed"),
    "hosts prune cache": (("hosts", "prune", "--on", "here", "--yes"), 0, "caches"),
    "results report": (("results", "report", "last:good"), 0, "runs"),
    "schedule ls": (("schedule", "ls"), 0, "schedules"),
    "schedule tick": (("schedule", "tick"), 0, "firings"),
    "session status": (("session", "status"), 0, "sessions"),
    "progress": (("progress",), 0, "phases"),
    "top": (("top",), 0, "runs"),
    "emulator": (("emulator", "--for", "0"), 0, "url"),
    "emulator stopped": (("emulator", "--stop"), 0, "stopped"),
    "completion": (("completion", "bash"), 0, "script"),
    "help": (("help", "jobs"), 0, "text"),
    "help topics": (("help",), 0, "topics"),
    "version": (("--version",), 0, "fcctl"),
}
BOTH = ("run", "ps", "results show", "results tag", "jobs validate wrong", "config get", "hosts up", "version")
#: Verbs that take no arguments.
NO_ARGUMENTS = (
    "ps", "results reindex", "jobs ls", "config path", "cost budget", "cost rebuild", "hosts ls", "hosts audit",
    "hosts prune", "schedule ls", "schedule install", "schedule tick", "schedule serve", "session status", "progress",
    "top",
)  # fmt: skip
#: Every verb when it cannot: the exit code and the error's code.
FAILING: dict[str, tuple[tuple[str, ...], int, str]] = {
    "init": (("init",), 8, "conflict"),
    "doctor": (("doctor", "--bogus"), 2, "usage"),
    "preflight": (("preflight", "--on", "nowhere"), 7, "not_found"),
    "run no job": (("run", "goood"), 7, "not_found"),
    "run no target": (("run", "good", "--on", "nowhere"), 7, "not_found"),
    "run invalid": (("run", "wrong", "--on", "here"), 3, "job"),
    "run no port": (("run", "good", "--on", "shut"), 6, "host_unreachable"),
    "run no setting": (("run", "good", "--on", "here", "--set", "X"), 2, "usage"),
    "tune": (("tune", "summ"), 7, "not_found"),
    "tune what is no search": (("tune", "--adopt", "last:good"), 7, "not_found"),
    "logs": (("logs", "nothing"), 102, "run_not_found"),
    "logs step": (("logs", "last:good", "--step", "b"), 7, "not_found"),
    "attach": (("attach", "nothing"), 102, "run_not_found"),
    "attach tmux": (("attach", "--tmux"), 2, "usage"),
    "cancel": (("cancel",), 2, "usage"),
    "cancel nothing": (("cancel", "nothing"), 102, "run_not_found"),
    "pull-results": (("pull-results", "nothing"), 102, "run_not_found"),
    "results ls": (("results", "ls", "--status", "good"), 2, "usage"),
    "results show": (("results", "show", "nothing"), 102, "run_not_found"),
    "results export": (("results", "export", "last:good", "-o", "no/such/file"), 1, "error"),
    "results export binary": (("results", "export", "last:good", "--format", "tar.zst"), 2, "usage"),
    "results compare": (("results", "compare", "baseline", "last"), 102, "run_not_found"),
    "results compare nothing": (("results", "compare", "last:good", "--fail-on", "slower:3%"), 7, "not_found"),
    "results history": (("results", "history", "--benchmark", "nothing"), 7, "not_found"),
    "results tag": (("results", "tag", "last", "last:good"), 2, "usage"),
    "results prune": (("results", "prune"), 2, "usage"),
    "results import": (("results", "import", "no-such.tar.zst"), 7, "not_found"),
    "jobs show": (("jobs", "show", "nothing"), 7, "not_found"),
    "jobs validate": (("jobs", "validate", "nothing"), 7, "not_found"),
    "config show": (("-C", "/", "config", "show"), 7, "not_found"),
    "config get": (("config", "get", "project.nam"), 7, "not_found"),
    "cost plan": (("cost", "plan", "goood"), 7, "not_found"),
    "cost prices": (("cost", "prices", "--region", "us-east9"), 7, "not_found"),
    "cost ledger": (("cost", "ledger", "--by", "colour"), 2, "usage"),
    "hosts up": (("hosts", "up", "nowhere"), 7, "not_found"),
    "hosts down": (("hosts", "down", "nowhere"), 7, "not_found"),
    "hosts ssh": (("hosts", "ssh", "nowhere"), 7, "not_found"),
    "hosts prepare": (("hosts", "prepare", "nowhere"), 7, "not_found"),
    "hosts exec": (("hosts", "exec", "--on", "nowhere", "true"), 7, "not_found"),
    "hosts ssh-config": (("hosts", "ssh-config", "here"), 3, "config"),
    "results report": (("results", "report", "nothing"), 102, "run_not_found"),
    "schedule add": (("schedule", "add", "n", "--cron", "1", "--job", "good"), 2, "usage"),
    "schedule rm": (("schedule", "rm", "nothing"), 7, "not_found"),
    "schedule fire": (("schedule", "fire", "nothing", "--due", "1"), 7, "not_found"),
    "session start": (("session", "start", "--on", "nowhere", "--budget", "1"), 7, "not_found"),
    "session stop": (("session", "stop"), 7, "not_found"),
    "session report": (("session", "report"), 7, "not_found"),
    "run no revision": (("run", "good", "--on", "here", "--rev", "nothing"), 3, "config"),
    "ui": (("ui", "--port", "x"), 2, "usage"),
    "emulator": (("emulator", "--faults", "nothing.yaml"), 3, "config"),
    "completion": (("completion", "tcsh"), 2, "usage"),
    "help": (("help", "nothing"), 7, "not_found"),
    "results": (("results",), 2, "usage"),
    "nothing": ((), 2, "usage"),
    "unknown": (("rum",), 2, "usage"),
    **{verb: ((*verb.split(), "x"), 2, "usage") for verb in NO_ARGUMENTS},
}

#: Verbs that work only with what is made for them elsewhere (a machine, a page, a schedule), or that do not end.
ELSEWHERE = {
    "hosts ssh", "session start", "session stop", "session report", "schedule add", "schedule rm", "schedule install",
    "schedule serve", "schedule fire", "ui",
}  # fmt: skip


def verbs() -> set[str]:
    found = set()
    for name in VERBS:
        command = load(name)
        below = list(command.commands) if isinstance(command, click.Group) else []
        found.update(f"{name} {child}" for child in below)
        if not below:
            found.add(name)
    return found


def covered(table: dict[str, tuple[tuple[str, ...], int, str]]) -> set[str]:
    """The verbs that a table types."""
    words = {argv[2:] if argv[:1] == ("-C",) else argv for argv, _, _ in table.values()}
    return {name for name in verbs() for argv in words if (*argv[: name.count(" ") + 1],) == (*name.split(),)}


def cases(table: dict[str, tuple[tuple[str, ...], int, str]]) -> list[Any]:
    """Its rows with ``--json`` after the words, and before them: of a few verbs in ``make test``."""
    return [
        pytest.param(*row, after, id=f"{name}-{'after' if after else 'before'}",
                     marks=() if after or name in BOTH else pytest.mark.full)
        for name, row in table.items() for after in (True, False)
    ]  # fmt: skip


def strict(text: str) -> Any:
    """JSON as other languages read it: no NaN, no Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A workspace with a run that passed and one that failed; the whole module looks at them."""
    with pytest.MonkeyPatch.context() as patch, home_of_its_own(patch) as home:
        made = Workspace(tmp_path_factory.mktemp("json") / "w", home)
        number = '{"kind": "metrics", "metrics": {"a": NaN, "b": Infinity}}'
        made.job("good", f"steps:\n  - {{id: a, run: 'echo héllo; echo ''{number}'' > $FCCTL_OUT/m.json'}}\n")
        made.job("bad", "steps:\n  - {id: a, run: exit 3}\n")
        made.job("wrong", "steps:\n  - {id: a, rum: exit 3}\n")
        made.write_search("sum", 'parameters: {A: [1, 2]}\ncheck: "true"\nserve: "true"\n')
        with (made.root / "fcctl.toml").open("a") as config:
            config.write('\n[targets.shut]\nkind = "ssh"\nhost = "127.0.0.1"\nport = 1\n\n[phases.good]\n')
        made.fcctl("run", "good", "--on", "here")
        made.fcctl("run", "bad", "--on", "here", check=100)
        made.fcctl("results", "export", "last:good", "-o", "runs.tar.zst")
        yield made


def typed(workspace: Workspace, *argv: str, env: dict[str, str] | None = None) -> Outcome:
    return run_fcctl(*argv, cwd=workspace.root, env={**workspace.env(), **(env or {})})


def test_no_verb_is_left_out() -> None:
    assert covered(WORKING) == verbs() - ELSEWHERE
    assert covered(FAILING) == verbs()


@pytest.mark.parametrize(("argv", "code", "key", "after"), cases(WORKING))
def test_one_document(workspace: Workspace, argv: tuple[str, ...], code: int, key: str, after: bool) -> None:
    if argv[0] == "init":
        argv = ("init", f"new-{after}")
        (workspace.root / argv[1]).mkdir()
    done = typed(workspace, *((*argv, "--json") if after else ("--json", *argv)))
    if argv[0] == "preflight":  # what it finds is this computer's
        code = ("pass", "warn", "fail").index(strict(done.out)["summary"]["status"])
    assert done.code == code, done.err
    assert done.err == ""
    assert done.out.count("\n") == 1
    document = strict(done.out)
    assert document["schema_version"] == 1
    assert key in document


@pytest.mark.parametrize(("argv", "code", "name", "after"), cases(FAILING))
def test_one_error(workspace: Workspace, argv: tuple[str, ...], code: int, name: str, after: bool) -> None:
    done = typed(workspace, *((*argv, "--json") if after else ("--json", *argv)))
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    document = strict(done.err)
    assert document["schema_version"] == 1
    error = document["error"]
    assert (done.code, error["exit_code"], error["code"]) == (code, code, name)
    assert error["message"]
    assert set(error) == {"code", "exit_code", "message", "cause", "hint"}


def test_the_log_is_put_together_from_its_lines(workspace: Workspace) -> None:
    workspace.job(
        "long", "steps:\n  - {id: a, run: 'for i in $(seq 200000); do echo ééé; done'}\n  - {id: b, run: ls}\n"
    )
    typed(workspace, "run", "long", "--on", "here")
    lines = [strict(line) for line in typed(workspace, "logs", "last:long", "--step", "a", "--json").out.splitlines()]
    assert len(lines) > 1
    assert "".join(line["text"] for line in lines) == "ééé\n" * 200000
    assert {line["step"] for line in lines} == {"a"}


ENDED_BY = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("number", "code"), sampled(ENDED_BY, ENDED_BY[:1]))
def test_leaving_is_an_error_object_too(workspace: Workspace, number: signal.Signals, code: int) -> None:
    workspace.job("slow", "steps:\n  - {id: a, run: 'touch \"$MARK\"; sleep 600'}\nenv: {MARK: x}\n")
    mark = workspace.root.parent / f"mark-{code}"
    process = workspace.start("run", "slow", "--on", "here", "--set", f"MARK={mark}", "--json")
    wait_for(mark.exists)
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out) == (code, "")
    error = strict(err)["error"]
    assert (error["code"], error["exit_code"]) == ("interrupted", code)
    run_id = re.search(r"fcctl attach (\S+)", error["message"])
    assert run_id
    ended = typed(workspace, "cancel", run_id[1], "--grace", "0", "--json")
    assert strict(ended.out)["runs"] == [{"run_id": run_id[1], "status": "cancelled", "changed": True}]


def test_verbose_brings_the_progress_back(workspace: Workspace) -> None:
    done = typed(workspace, "run", "good", "--on", "here", "--json", "-v")
    assert strict(done.out)["status"] == "passed"
    assert "step a" in done.err
    assert "héllo" in done.err


@pytest.mark.parametrize("argv", [("run", "good", "--on", "here", "-q"), ("-q", "run", "good", "--on", "here")])
def test_quiet_says_nothing_of_a_run_that_passed(workspace: Workspace, argv: tuple[str, ...]) -> None:
    assert typed(workspace, *argv) == Outcome(0, "", "")


def test_a_defect_keeps_to_json(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import orchestrator.cli.verbs.runs as m\n"
        "def broken(*a, **k): raise ZeroDivisionError('x')\n"
        "m.ps.callback = broken\n"
    )
    path = f"{tmp_path}:{workspace.env()['PYTHONPATH']}"
    quiet = typed_with(workspace, path, "ps", "--json")
    assert strict(quiet.err)["error"]["cause"] == "this is a bug in fcctl"
    loud = typed_with(workspace, path, "ps", "--json", "--debug")
    assert loud.err.startswith("Traceback")
    assert strict(loud.err.splitlines()[-1])["error"]["exit_code"] == loud.code == 1


def typed_with(workspace: Workspace, path: str, *argv: str) -> Outcome:
    done = workspace.fcctl(*argv, check=None, env={"PYTHONPATH": path})
    return Outcome(done.returncode, done.stdout, done.stderr)


ESCAPE = "\x1b["


@pytest.mark.parametrize(
    ("options", "env", "coloured"),
    [
        ((), {"FORCE_COLOR": "1"}, True),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
        (("--color", "never"), {}, False),
    ],
)
def test_colour_is_as_asked_for_and_never_in_json(
    workspace: Workspace, options: tuple[str, ...], env: dict[str, str], coloured: bool
) -> None:
    assert (ESCAPE in typed(workspace, *options, "results", "show", "last:bad", env=env).out) is coloured
    assert (ESCAPE in typed(workspace, "logs", "nothing", *options, env=env).err) is coloured
    assert ESCAPE not in typed(workspace, *options, "results", "show", "last:bad", "--json", env=env).out
