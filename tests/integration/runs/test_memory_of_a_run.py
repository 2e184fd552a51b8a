"""A run on a machine that sends what takes much memory: it ends, and this computer has memory left."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import scripted_python
from tests.support.hostile_documents import LIMIT_MB, documents, fcctl, filled
from tests.support.workspace import Workspace

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is one of Linux")
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


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "ws", private_home)
    made.job("j", "report: true\nsteps:\n  - {id: s, run: 'true'}\n")
    return made


def on(workspace: Workspace, make: Callable[[Path], None], *, telemetry: bool = False, omitted: int = 15_000) -> None:
    """Its machine has what ``make`` puts into a folder."""
    folder = workspace.root.parent / "host"
    make(folder)
    body = AGENT.format(folder=str(folder), omitted=omitted, telemetry=telemetry)
    python = scripted_python(workspace.root.parent, body)
    (workspace.root / "fcctl.toml").write_text(f'[targets.here]\nkind = "local"\npython = "{python}"\n')


@pytest.mark.full
@pytest.mark.parametrize("name", CORPORA)
def test_a_run_ends_and_can_be_shown(workspace: Workspace, name: str) -> None:
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
