"""Notices of ``[notify]`` at a real HTTP server and a real program, and what they must not give away."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.emulator.emulator import Emulator
from orchestrator.results.records import CostRecord, RunRecord, SourceRecord, StepRecord
from orchestrator.runs import notices as notify
from orchestrator.runs.notices import Notice, Notifier, Notify
from tests.support.hook import Hook
from tests.support.virtual_cloud import INSTANCE, CloudWorkspace, billed, machine_by_hand
from tests.support.workspace import Workspace


def record(**values: Any) -> RunRecord:
    return RunRecord(
        run_id="20261121t081530z-bench-l4-3fa9c1",
        job="bench",
        target="l4",
        created="2026-11-21T08:15:30.000Z",
        finished="2026-11-21T08:25:30.000Z",
        source=SourceRecord(tree_sha256="0" * 64),
        **{
            "status": "failed",
            "exit_code": 100,
            "message": "a <gate> & a half",
            "cost": CostRecord(usd=0.13),
            **values,
        },
    )


def test_a_failed_run_reaches_all_three(hook: Hook, tmp_path: Path) -> None:
    out = tmp_path / "event.json"
    script = f"import os,sys; open({str(out)!r},'w').write(os.environ['FCCTL_STATUS']+sys.stdin.read())"
    settings = Notify(command=[sys.executable, "-c", script], webhook=hook.url, slack="env:HOOK")
    notice = notify.of_run(record(steps=[StepRecord(id="test", status="failed")]))
    environ = {"HOOK": hook.url, "PATH": "/usr/bin"}
    assert Notifier(settings, "flashcore", environ).send(notice) == []
    generic, slack = (body for _, body in hook.got)
    assert generic["event"] == "failed"
    assert generic["run"]["usd"] == 0.13
    assert generic["workspace"] == "flashcore"
    assert slack == {
        "text": "bench on l4 failed at test, $0.13: a &lt;gate&gt; &amp; a half (20261121t081530z-bench-l4-3fa9c1)"
    }
    written = out.read_text()
    assert written.startswith("failed{")
    assert json.loads(written[6:]) == generic


def test_an_event_that_nobody_wants_goes_nowhere(hook: Hook) -> None:
    settings = Notify(webhook=hook.url)
    assert Notifier(settings, "w").send(notify.of_run(record(status="passed", exit_code=0))) == []
    assert hook.got == []
    assert Notifier(Notify(webhook=hook.url, on=["finished"]), "w").send(notify.of_run(record(status="passed"))) == []
    assert hook.got[0][1]["event"] == "finished"


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_webhook_that_refuses_is_a_line_without_its_secret(hook: Hook, status: int) -> None:
    hook.status = status
    (problem,) = Notifier(Notify(webhook=hook.url), "w").send(notify.of_refusal("nightly", "the month is spent"))
    assert f"HTTP status {status}" in problem
    assert "SECRET" not in problem
    assert [path for path, _ in hook.got] == ["/services/SECRET"], "a redirect was followed"


def test_nobody_there(tmp_path: Path) -> None:
    settings = Notify(
        webhook="http://127.0.0.1:9/SECRET", slack="env:NOT_SET", command=[str(tmp_path / "nothing"), "x"]
    )
    problems = Notifier(settings, "w", {}).send(notify.of_left_running([{"name": "vm", "zone": "z"}], 0.71))
    assert len(problems) == 3
    assert not any("SECRET" in p for p in problems)


def test_a_program_that_fails_says_why() -> None:
    settings = Notify(command=[sys.executable, "-c", "import sys; sys.exit('no bus')"])
    assert Notifier(settings, "w").send(Notice("failed", "t")) == ["[notify] command failed with exit code 1: no bus"]


@pytest.mark.parametrize("url", ["http://example.com/x", "ftp://x", "https://", "env:", "file:///etc/passwd", "x y"])
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        Notify(webhook=url)


def test_what_is_shown_of_an_address() -> None:
    assert notify.without_secret("https://u:p@hooks.example.com/T/SECRET") == "https://hooks.example.com/..."
    assert notify.without_secret("env:HOOK") == "env:HOOK"


JOB = "steps:\n  - {id: say, run: 'exit ${CODE}', timeout: 60}\nenv: {CODE: '0'}\n"


def told(workspace: Workspace) -> list[dict[str, Any]]:
    path = workspace.root / "told.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def with_notices(
    folder: Path, home: Path, on: str, command: str = "cat >> told.jsonl; echo >> told.jsonl"
) -> Workspace:
    workspace = Workspace(folder / "w", home)
    text = (workspace.root / "fcctl.toml").read_text()
    argv = json.dumps(["sh", "-c", f"cd {workspace.root}; {command}"])
    (workspace.root / "fcctl.toml").write_text(f"{text}\n[notify]\ncommand = {argv}\non = {on}\n")
    workspace.job("hello", JOB)
    return workspace


def test_passed_and_failed_are_told_once_each(tmp_path: Path, private_home: Path) -> None:
    workspace = with_notices(tmp_path, private_home, '["finished", "failed"]')
    workspace.fcctl("run", "hello", "--on", "here")
    workspace.fcctl("run", "hello", "--on", "here", "--set", "CODE=3", check=100)
    assert [(one["event"], one["run"]["status"]) for one in told(workspace)] == [
        ("finished", "passed"), ("failed", "failed"),
    ]  # fmt: skip
    workspace.fcctl("ps")
    assert len(told(workspace)) == 2


def test_a_hook_that_fails_changes_no_exit_code(tmp_path: Path, private_home: Path) -> None:
    workspace = with_notices(tmp_path, private_home, '["finished"]', "echo no way >&2; exit 7")
    done = workspace.fcctl("run", "hello", "--on", "here")
    assert "[notify] command failed with exit code 7: no way" in done.stderr


def test_an_audit_tells_of_a_machine_that_is_on_for_nobody(
    tmp_path: Path, private_home: Path, cloud: Emulator, hook: Hook
) -> None:
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud)
    machine_by_hand(cloud, "running")
    cloud.advance(3600)
    told = tmp_path / "told.jsonl"
    command = json.dumps(["sh", "-c", f"printf '%s ' $FCCTL_EVENT >> {told}; cat >> {told}; echo >> {told}"])
    with (workspace.root / "fcctl.toml").open("a") as file:
        file.write(f'\n[notify]\ncommand = {command}\nwebhook = "{hook.url}"\n')
    workspace.type("hosts", "audit", check=10)
    workspace.type("hosts", "audit", "--stop", "--quiet", check=0)
    assert billed(cloud) == []
    workspace.type("hosts", "audit", check=0)
    lines = told.read_text().splitlines()
    assert len(lines) == 2, "each audit that finds it says so, and none once it is off"
    event, _, text = lines[0].partition(" ")
    body = json.loads(text)
    assert (event, body["event"]) == ("left_running", "left_running")
    assert [(m["name"], m["zone"]) for m in body["machines"]] == [(INSTANCE, "us-west1-c")]
    assert 0.5 < body["usd_per_hour"] <= body["machines"][0]["usd_so_far"] * 1.1
    assert "fcctl hosts audit --stop" in body["text"]
    assert [sent for _, sent in hook.got] == [json.loads(line.partition(" ")[2]) for line in lines]
