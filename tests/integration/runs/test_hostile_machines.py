"""A machine that does what it can against the commands of a laptop: each of them answers, and soon."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import scripted_python
from tests.support.hostile_documents import LIMIT_MB, documents, fcctl, filled
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

#: All that a step may reach of its run, and of what other runs use. It goes on when there is a file ``go``.
EVIL = r"""
steps:
  - id: evil
    run: |
      cd "$FCCTL_RUN_DIR"
      fifo() { for name; do until rm -rf "$name" && mkfifo "$name"; do :; done; done; }  # written anew meanwhile: again
      fifo events.jsonl telemetry.jsonl heartbeat.json steps/evil/log.txt plan.json supervisor.log cancel.json
      mkdir -p steps/last && ln -s /dev/zero steps/last/log.txt
      cd ../..
      fifo facts.json lease.json locks/queue.lock locks/lease.lock locks/tidied
      until [ -e "$HOME/go" ]; do sleep 0.05; done
  - id: last
    run: echo over
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    made.job("evil", EVIL)
    made.job("fine", "lock: shared\nsteps:\n  - {id: say, run: echo fine}\n")
    made.job("long", "lock: shared\nsteps:\n  - {id: wait, run: 'until [ -e $HOME/go ]; do sleep 0.1; done'}\n")
    return made


def said(workspace: Workspace, *args: str, check: int | None = 0) -> str:
    done = workspace.fcctl(*args, check=check)
    return done.stdout + done.stderr


def test_fifos_in_the_place_of_a_run_s_files_hold_up_no_command(workspace: Workspace) -> None:
    workspace.job("evil", EVIL.replace("steps:", "lock: shared\nsteps:", 1))
    workspace.fcctl("run", "evil", "--on", "here", "--detach")
    (evil,) = workspace.active()
    folder = workspace.home / ".fcctl/runs" / evil
    wait_for((folder / "steps/last/log.txt").is_symlink)
    wait_for((workspace.home / ".fcctl/locks/tidied").is_fifo)
    assert evil in said(workspace, "ps")
    said(workspace, "logs", check=None)
    assert "passed" in said(workspace, "run", "fine", "--on", "here")
    (workspace.home / "go").touch()
    wait_for((folder / "outcome.json").is_file)
    assert evil in said(workspace, "pull-results")
    assert "no active runs" in said(workspace, "ps")
    assert "passed" in said(workspace, "results", "show", evil)
    assert len(workspace.json("results", "ls")["runs"]) == 2
    record = workspace.runs()[evil]
    omitted = {one["path"]: one["reason"] for one in record["omitted"]}
    assert omitted.pop("steps/evil/log.txt") == "fifo"
    # Made anew where something was written to them since.
    assert set(omitted.items()) <= {("supervisor.log", "fifo"), ("telemetry.jsonl", "fifo")}
    assert (workspace.root / "results/runs" / evil / "steps/last/log.txt").read_text() == "over\n"
    assert "passed" in said(workspace, "run", "fine", "--on", "here")


def moved_to(workspace: Workspace, run_id: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = workspace.root / "results/active" / run_id / "plan.json"
    plan = json.loads(path.read_text())
    change(plan)
    path.write_text(json.dumps(plan))


@pytest.mark.full
def test_ps_takes_five_seconds_for_a_host_that_never_answers_however_many_runs_are_on_it(
    workspace: Workspace, tmp_path: Path
) -> None:
    for _ in range(6):
        workspace.fcctl("run", "long", "--on", "here", "--detach")
    python = scripted_python(tmp_path, "hello()\nwhile True:\n    time.sleep(0.2); send({'tick': 1.0})\n")
    first, *others = workspace.active()
    for run_id in others:
        moved_to(workspace, run_id, lambda plan: plan["target"].update(name="evil", python=python))
    # By a new interpreter, with the limit that users have: those that tests share are patient.
    fresh = {"LC_ALL": "C.UTF-8"}
    began = time.monotonic()
    shown = {run["run_id"]: run for run in json.loads(workspace.fcctl("ps", "--json", env=fresh).stdout)["runs"]}
    assert time.monotonic() - began < 5 + 18
    assert shown[first]["state"] == "running"
    for run_id in others:
        assert shown[run_id]["state"] == "unreachable"
        assert "did not answer within 5 s" in shown[run_id]["detail"]
    for run_id in others:
        moved_to(workspace, run_id, lambda plan: plan["target"].update(name="here", python=None))
    (workspace.home / "go").touch()
    workspace.fcctl("pull-results", "--wait", check=None)


def test_one_run_that_cannot_be_read_hides_no_other(workspace: Workspace) -> None:
    """Whatever its journal holds: the programs before this one wrote down what a host said of its clock."""
    for _ in range(2):
        workspace.fcctl("run", "long", "--on", "here", "--detach")
    bad, good = workspace.active()
    wait_for(lambda: [run["state"] for run in workspace.json("ps")["runs"]] == ["running"] * 2)
    journal = workspace.root / "results/active" / bad / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[-1]["data"] = {"deadline": 1e300, "started": "x", "action": [], "status": {}, "instance_id": None}
    extra = {**lines[-1], "seq": lines[-1]["seq"] + 1, "kind": "acquired", "time": 1e300}
    journal.write_text("".join(json.dumps(line) + "\n" for line in [*lines, extra]))
    shown = {run["run_id"]: run["state"] for run in workspace.json("ps")["runs"]}
    assert shown[good] == "running"
    assert bad in shown
    (workspace.root / "results/active/20261128t000000z-long-here-aaaaaa/journal.jsonl").mkdir(parents=True)  # no plan
    shown = {run["run_id"]: run["state"] for run in workspace.json("ps")["runs"]}
    assert (shown[good], shown["20261128t000000z-long-here-aaaaaa"]) == ("running", "broken")
    os.mkfifo(workspace.root / "results/tags.toml")
    for words in (["results", "ls"], ["schedule", "ls"], ["cost", "budget"], ["ps", "--offline"]):
        workspace.fcctl(*words)
    (workspace.home / "go").touch()
    wait_for(lambda: good in said(workspace, "pull-results", check=None) or good in workspace.runs())


#: A host program that says of any run that it has passed, and has the files of a folder.
AGENT = """
import hashlib
from pathlib import Path

FOLDER = Path({folder!r})
OMITTED = [dict(path=f"steps/s/{{i}}" + "x" * 600, reason="too_large") for i in range({omitted})]

def listed(path):
    data = path.read_bytes()
    return dict(path=str(path.relative_to(FOLDER)), size=len(data), sha256=hashlib.sha256(data).hexdigest())

def summary(run_id):
    return dict(run_id=run_id, job="j", status="passed", created=1.0, exit_code=0)

hello(free_bytes=10**12)
while True:
    asked = receive()
    call, told, blob = asked["method"], asked["params"], b""
    if call == "tree_diff":
        result = dict(changed=[], removed=0, root="/x")
    elif call == "snapshot":
        result = dict(tree_sha256=told["tree_sha256"], files=1, bytes=1, path="/x")
    elif call == "submit":
        run_id = told["plan"]["run_id"]
        outcome = (FOLDER / "outcome.json").read_bytes().replace(b"RUN", run_id.encode(), 1)
        (FOLDER / "outcome.json").write_bytes(outcome)
        result = dict(state="started", summary=summary(run_id))
    elif call == "status":
        result = dict(runs=[summary(name) for name in told["run_ids"] or []])
    elif call == "watch":
        result = dict(events=[], events_offset=told["events_offset"], summary=summary(told["run_id"]))
        if {telemetry}:
            result["telemetry"] = dict(time=1.0, more=[[]] * 3_500_000)
    elif call == "files":
        result = dict(files=[listed(p) for p in sorted(FOLDER.rglob("*")) if p.is_file()], omitted=OMITTED)
    elif call == "fetch":
        parts = []
        for part in told["parts"]:
            with open(FOLDER / part["path"], "rb") as file:
                file.seek(part["offset"])
                parts.append(file.read(part["size"]))
        result, blob = dict(parts=[dict(p, size=len(d)) for p, d in zip(told["parts"], parts)]), b"".join(parts)
    else:
        result = dict()
    send(dict(id=asked["id"], result=result), blob)
"""


def outcome(documents: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    step = {"id": "s", "status": "passed", "started": 1.0, "finished": 2.0, "duration_s": 1.0, "documents": documents}
    times = {"started": 1.0, "finished": 2.0}
    return {"run_id": "RUN", "job": "j", "status": "passed", "exit_code": 0, **times, "steps": [step], **more}


def put(folder: Path, path: str, content: bytes) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)


def eight_documents(folder: Path) -> None:
    refs = []
    for i, (kind, content) in enumerate(documents(4_000_000)):
        refs.append({"kind": kind, "path": f"steps/s/out/{i}.json"})
        put(folder, refs[-1]["path"], content)
    line = b'{"time":%d,"gpus":[{"util_pct":99,"more":[' + b"[]," * 20_000 + b"0]}]}\n"
    put(folder, "telemetry.jsonl", b"".join(line % i for i in range(400)))
    put(folder, "outcome.json", json.dumps(outcome(refs)).encode())


def brackets(folder: Path) -> None:
    put(folder, "outcome.json", filled("x", "host", b"[],", 60_000_000))


def deep_brackets(folder: Path) -> None:
    host = {"gpu": [json.loads("[" * 150 + "]" * 150)] * 900}
    put(folder, "outcome.json", json.dumps(outcome([], host=host)).encode())


def long_text(folder: Path) -> None:
    put(folder, "outcome.json", json.dumps(outcome([], host={"name": "x" * 15_500_000})).encode())


def steps(folder: Path) -> None:
    told = outcome([])
    told["steps"] = [{"id": "s", "status": "failed"}] * 20_000
    put(folder, "outcome.json", json.dumps(told).encode())


def gates(folder: Path) -> None:
    told = outcome([])
    told["steps"][0]["gates"] = [{"expr": "a", "verdict": "fail"}] * 20_000
    put(folder, "outcome.json", json.dumps(told).encode())


#: What the host has, and how the run ends.
CORPORA: dict[str, tuple[Callable[[Path], None], str]] = {
    "eight documents": (eight_documents, "passed"),
    "an outcome of brackets": (brackets, "error"),
    "an outcome of nested brackets": (deep_brackets, "error"),
    "an outcome of text": (long_text, "error"),
    "an outcome of steps": (steps, "error"),
    "an outcome of gates": (gates, "passed"),
}


def on(workspace: Workspace, make: Callable[[Path], None], *, telemetry: bool = False, omitted: int = 15_000) -> None:
    """Its machine has what ``make`` puts into a folder."""
    folder = workspace.root.parent / "host"
    make(folder)
    body = AGENT.format(folder=str(folder), omitted=omitted, telemetry=telemetry)
    python = scripted_python(workspace.root.parent, body)
    (workspace.root / "fcctl.toml").write_text(f'[targets.here]\nkind = "local"\npython = "{python}"\n')


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is one of Linux")
@pytest.mark.parametrize("name", CORPORA)
def test_a_run_ends_and_can_be_shown(workspace: Workspace, name: str) -> None:
    """It takes much memory of the machine's own making; this computer has memory left."""
    workspace.job("j", "report: true\nsteps:\n  - {id: s, run: 'true'}\n")
    make, status = CORPORA[name]
    on(workspace, make)
    ran = fcctl(workspace.root, "run", "j", "--on", "here", env=workspace.env())
    assert (ran.code, ran.peak_mb < LIMIT_MB) == (0 if status == "passed" else 100, True), (
        ran.peak_mb,
        ran.err[-2000:],
    )
    record = workspace.only_run()
    assert record["status"] == status
    assert record["omitted"][-1] == {"path": "... and 13000 more", "reason": "not listed"}
    shown = fcctl(workspace.root, "results", "show", "--json", env=workspace.env())
    assert (shown.code, shown.peak_mb < LIMIT_MB) == (0, True), (shown.peak_mb, shown.err[-2000:])
