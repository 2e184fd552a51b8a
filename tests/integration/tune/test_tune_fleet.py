"""A search on several hosts, which are folders of this machine here: they come late, die, come back, or do not fit."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")
pytest.importorskip("distributed")

from tests.support.living import is_running, started_with
from tests.support.scripts import script
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"),
]

ROOT = Path(__file__).resolve().parents[3]
SMI = '[ "$1" = -L ] && echo "GPU 0: $MODEL (UUID: GPU-$HOST_NAME)"'
#: Until they may go on, host a builds the default alone, and host b that and three others.
BUILD = """
until [ $P = 1 -o -e "$MARKS/go" ] || [ $HOST_NAME = b -a $(grep -c ^b "$MARKS/built") -lt 4 ]; do sleep 0.1; done
pwd > "$TUNE_OUT/where"
echo $HOST_NAME $P >> "$MARKS/built"
"""
SPEC = {
    "tune": "stranger",
    "parameters": {"P": list(range(1, 11))},
    "build": BUILD,
    "check": '[ "$(cat "$TUNE_OUT/where")" = "$PWD" ]',
    "bench": 'echo "{\\"us\\": $((20 - P)).5}" > $TUNE_OUT/b.json',
    "metric": {"reader": "metrics", "file": "$TUNE_OUT/b.json", "value": "metrics.us"},
    "timeouts": {"build": 200},
    "trials": 10,
    "elites": 1,
}


#: Whoever serves notes what it is asked first.
SERVER = """
import json, os, sys
first = True
for line in sys.stdin:
    asked = json.loads(line)
    if asked["op"] == "warm":
        with open(os.environ["MARKS"] + "/warmed", "a") as noted:
            noted.write(os.environ["HOST_NAME"] + " %s\\n" % asked["cases"])
    reply = {"id": asked["id"], "ok": True, "samples": [1.0] * asked.get("repeats", 1)}
    if asked["op"] == "turns":
        reply["per"] = [[1.0] * asked["turns"] for _ in asked["many"]]
    print(json.dumps(reply), flush=True)
"""


class Fleet:
    """Folders that are hosts; all that was started ends with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marks = folder, folder / "marks"
        self.marks.mkdir()
        (folder / "tmp").mkdir()
        script(folder / "bin/nvidia-smi", SMI)
        self.offer = folder / "fleet" / "fleet.json"
        self.started: list[subprocess.Popen[bytes]] = []
        self.spec: dict[str, Any] = SPEC

    def start(self, host: str, *arguments: str, model: str = "Card A") -> subprocess.Popen[bytes]:
        place = self.folder / host
        if not place.exists():
            place.mkdir()
            (place / "spec.json").write_text(json.dumps(self.spec))
        env = {
            **os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "MARKS": str(self.marks),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "remote"), os.environ.get("PYTHONPATH", "")]),
            "HOST_NAME": host, "MODEL": model, "FCCTL_OUT": str(place),
            "TMPDIR": str(self.folder / "tmp"),
        }  # fmt: skip
        env.pop("CUDA_VISIBLE_DEVICES", None)
        with self.log(host).open("ab") as log:
            made = subprocess.Popen(
                [sys.executable, "-m", "fcctl_tune", *arguments],
                cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.started.append(made)
        return made

    def log(self, host: str) -> Path:
        return self.folder / f"{host}.log"

    def said(self, host: str) -> str:
        path = self.log(host)
        return path.read_text() if path.exists() else ""

    def search(self, *more: str) -> subprocess.Popen[bytes]:
        run = ("run", "spec.json", "--out", "out", "--strategy", "exhaustive")
        return self.start("a", *run, *(more or ("--fleet", str(self.offer), "--host", "a")))

    def member(self, host: str, *more: str, model: str = "Card A") -> subprocess.Popen[bytes]:
        return self.start(host, "member", "--host", host, "--join", str(self.folder / "join.json"), *more, model=model)

    def tell(self) -> None:
        """What fcctl does, with the port of a tunnel instead."""
        wait_for(self.offer.exists)
        offered = json.loads(self.offer.read_text())
        assert self.offer.stat().st_mode & 0o077 == 0
        entry = {**{key: offered[key] for key in ("schema", "tls")}, "scheduler": offered["port"]}
        (self.folder / "join.new").write_text(json.dumps(entry))
        (self.folder / "join.new").rename(self.folder / "join.json")

    def until(self, host: str, line: str, times: int = 1) -> None:
        with contextlib.suppress(AssertionError):
            wait_for(lambda: self.said(host).count(line) >= times)
        assert self.said(host).count(line) >= times, self.everything()

    def everything(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))

    def told(self) -> list[int]:
        numbers = []
        for line in (self.folder / "a" / "out" / "journal.log").read_text().splitlines():
            record = json.loads(line).get("user_attr", {}).get("record")
            numbers += [record["number"]] if record else []
        return numbers

    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "a" / "out" / "tune_log.csv").open(encoding="utf-8") as stream:
            return list(csv.DictReader(stream))

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "a" / "tuning.json").read_text())
        return found

    def living(self, host: str | None = None, *words: str) -> list[int]:
        """Processes of a host, or of all, with these words in their command lines."""
        theirs = started_with(f"MARKS={self.marks}", *([f"HOST_NAME={host}"] if host else []))
        return [pid for pid, typed in theirs if all(word in typed for word in words) and is_running(pid)]

    def power_off(self, host: str | None = None) -> None:
        """As a machine that is switched off: whatever runs there, and nothing of it says a word."""

        def kill() -> bool:
            left = self.living(host)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_for(kill)
        for one in self.started:
            one.poll()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    try:
        yield made
    finally:
        made.power_off()
        for one in made.started:
            one.wait()


def test_hosts_come_late_die_and_come_back_and_so_does_the_search(fleet: Fleet) -> None:
    fleet.search()
    fleet.tell()
    other = fleet.member("c", model="Card B")
    fleet.member("b")
    assert other.wait() == 0, fleet.everything()
    reason = "its GPU is Card B, but the search uses Card A: their times cannot be compared"
    assert f"ended: {reason}" in fleet.said("c")
    assert f"host c: not used: {reason}" in fleet.said("a")
    fleet.until("a", "host b: 1 x Card A, ")
    wait_for(lambda: len(fleet.told()) == 4)

    # b's builder is killed, and nothing else: what was being built there ends, another builds it.
    (builder,) = fleet.living("b", "fcctl_tune.workers.worker", "--cpu")
    building = fleet.living("b", "until [")
    assert building
    os.kill(builder, signal.SIGKILL)
    wait_for(lambda: not any(map(is_running, building)))
    wait_for(lambda: fleet.living("b", "until ["))
    assert "host b: lost" not in fleet.said("a")

    fleet.power_off("b")
    fleet.until("a", "host b: lost")
    back = fleet.member("b")
    fleet.until("a", "host b: back, 1 x Card A, ")
    before = fleet.told()

    # The machine that searches is switched off. It goes on there, with another port and another key.
    fleet.power_off("a")
    fleet.until("b", "the search does not answer")
    fleet.offer.unlink()
    again = fleet.search()
    fleet.tell()
    fleet.until("b", "joined the search", times=3)  # that member was not started anew
    fleet.until("a", "host b: 1 x Card A, ", times=2)
    (fleet.marks / "go").touch()
    assert again.wait() == 0, fleet.everything()
    assert back.wait() == 0, fleet.everything()
    assert fleet.said("b").endswith("ended: the search has ended\n")
    assert not fleet.living()
    assert not fleet.offer.exists()

    assert sorted(fleet.told()) == list(range(10))  # none lost, none told twice
    assert fleet.told()[: len(before)] == before
    assert {row["state"] for row in fleet.rows()} <= {"complete", "pruned"}  # each was timed where it was built
    assert {row["worker"] for row in fleet.rows()} == {"a/gpu-0", "b/gpu-0"}
    assert {row["gpu"] for row in fleet.rows()} == {"Card A"}
    built = (fleet.marks / "built").read_text().splitlines()
    assert (built.count("a 1"), built.count("b 1")) == (1, 1)  # builds are kept
    document = fleet.document()
    assert document["complete"] is True
    assert document["final"][0]["params"] == {"P": 10}
    assert {host["name"] for host in document["machine"]["hosts"]} == {"a", "b"}


def test_a_host_that_knows_the_search_begins_before_it_comes(fleet: Fleet) -> None:
    (fleet.folder / "server.py").write_text(SERVER)
    stages = {name: SPEC[name] for name in ("tune", "parameters", "timeouts", "trials", "elites")}
    until = 'until [ $P = 1 -o $HOST_NAME = b ] || [ $(grep -c ^b "$MARKS/built") -ge 2 ]; do sleep 0.1; done'
    build = until + '; echo $HOST_NAME $P >> "$MARKS/built"'  # host a waits until b has joined
    serve = f"exec {sys.executable} -S {fleet.folder / 'server.py'}"
    fleet.spec = {**stages, "build": build, "serve": serve, "metric": {"unit": "us"}, "cases": ["n"]}
    marks = [fleet.marks / name for name in ("built", "warmed")]
    fleet.member("b", "--spec", "spec.json")
    for mark, noted in zip(marks, ["b 1\n", "b ['n']\n"], strict=True):
        wait_for(lambda mark=mark: mark.exists() and mark.read_text())
        assert mark.read_text() == noted
    search = fleet.search()
    fleet.tell()
    assert search.wait() == 0, fleet.everything()
    assert "host b: 1 x Card A" in fleet.said("a")
    assert [mark.read_text().count(f"b {what}\n") for mark, what in zip(marks, ["1", "['n']"], strict=True)] == [1, 1]
    assert not fleet.living("b", "server.py")
