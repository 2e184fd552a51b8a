"""``cost rebuild``: the book of spending made anew from what is on this computer, and what nothing here tells."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import INSTANCE, CloudWorkspace, money, napping

RATE, HOUR = 0.706832, 3600.0
CAPS = "\n[budget]\nper_run_usd = 9\nper_session_usd = 9\nproject_usd = 300.0\n"


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, cloud: Emulator) -> CloudWorkspace:
    return napping(tmp_path / "w", private_home, cloud, CAPS)


def book(workspace: CloudWorkspace) -> Path:
    (path,) = workspace.home.glob("**/book.jsonl")
    return path


def rebuilt(workspace: CloudWorkspace, *words: str) -> Any:
    return workspace.type("--json", "cost", "rebuild", *words, check=0).json


def nothing(found: Any) -> bool:
    return not (found["runs"] or found["machine_records"] or found["reservations"])


def test_of_a_book_that_was_deleted(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("run", "noop", "--on", "l4", check=0)
    (run_id,) = workspace.runs()
    workspace.type("session", "start", "--on", "l4", "--budget", "1", check=0)
    cloud.advance(900)
    workspace.type("session", "stop", check=0)
    spent, _ = money(workspace)
    assert spent > RATE / 4
    active = workspace.type("run", "nap", "--on", "l4", "-d", check=0).out.strip()
    reserved = money(workspace)[1]
    assert nothing(rebuilt(workspace)), "it has all of it"

    book(workspace).unlink()
    planned = rebuilt(workspace, "--dry-run")
    assert (planned["dry_run"], nothing(planned)) == (True, False)
    assert not list(workspace.home.glob("**/book.jsonl"))
    found = rebuilt(workspace)
    assert {**planned, "dry_run": False} == found
    assert [one["run_id"] for one in found["runs"]] == [run_id]
    assert found["usd"] == pytest.approx(workspace.runs()[run_id]["cost"]["usd"])
    assert found["machine_records"] == 2, "the run's, and the session's, whose idle time no run has"
    assert [(one["owner"], one["reservation_id"]) for one in found["reservations"]] == [("run", active)]
    assert not any(found["unknown"].values())
    assert nothing(rebuilt(workspace)), "once"
    assert money(workspace) == (pytest.approx(spent, abs=0.01), pytest.approx(reserved, abs=0.02))
    workspace.type("cancel", active, "--grace", "0", check=0)
    assert money(workspace)[1] == 0


@pytest.mark.full
def test_a_session_and_a_kept_machine_are_reserved_again(tmp_path: Path, private_home: Path, cloud: Emulator) -> None:
    workspace = napping(tmp_path / "w", private_home, cloud, CAPS, release="keep")
    session = workspace.type("session", "start", "--on", "l4", "--budget", "1", check=0).out.strip()
    book(workspace).unlink()
    assert [one["reservation_id"] for one in rebuilt(workspace)["reservations"]] == [session]
    assert money(workspace)[1] > 0.9
    workspace.type("session", "stop", check=0)
    workspace.type("run", "noop", "--on", "l4", check=0)
    reserved = money(workspace)[1]
    book(workspace).unlink()
    (one,) = rebuilt(workspace)["reservations"]
    assert (one["owner"], one["usd"]) == ("kept", pytest.approx(reserved, abs=0.03))
    workspace.type("hosts", "down", "l4", check=0)
    assert money(workspace)[1] == 0
    book(workspace).unlink()
    cloud.advance(2 * HOUR)
    assert rebuilt(workspace)["reservations"] == [], "its limit has stopped it"


def test_damaged_lines_are_set_aside_and_every_command_says_so_once(workspace: CloudWorkspace) -> None:
    workspace.type("run", "noop", "--on", "l4", check=0)
    workspace.type("run", "noop", "--on", "l4", check=0)
    spent, _ = money(workspace)
    path = book(workspace)
    content = path.read_bytes()
    lines = content.split(b"\n")
    damaged = next(n for n, line in enumerate(lines) if b'"run_id"' in line)
    lines[damaged] = lines[damaged].replace(b'"run_id"', b'"run-id"')
    path.write_bytes(b"\n".join(lines))
    note = "note: 1 line of the ledger cannot be read, and is not counted: fcctl cost rebuild"
    for words in (["ps"], ["cost", "budget"], ["hosts", "ls"]):
        assert workspace.type(*words, check=0).err.splitlines().count(note) == 1, words
    assert workspace.type("--json", "cost", "budget", check=0).json["damaged_lines"] == 1

    assert "would be set aside" in workspace.type("cost", "rebuild", "--dry-run", check=0).out
    found = rebuilt(workspace)
    assert (found["damaged_lines"], len(found["runs"])) == (1, 1)
    assert Path(found["set_aside"]).read_bytes() == b"\n".join(lines)
    assert workspace.type("ps", check=0).err == ""
    assert money(workspace)[0] == pytest.approx(spent, abs=1e-3)


def test_it_names_what_it_cannot_know(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("run", "noop", "--on", "l4", check=0)
    (damaged,) = workspace.runs()
    workspace.type("run", "noop", "--on", "l4", check=0)
    (free,) = set(workspace.runs()) - {damaged}
    lost = workspace.type("run", "nap", "--on", "l4", "-d", check=0).out.strip()
    shutil.rmtree(workspace.root / "results/active" / lost)
    path = workspace.root / f"results/runs/{free}/run.json"
    record = json.loads(path.read_text())
    record["cost"] = {**record["cost"], "usd": 0.0, "usd_per_hour": 0.0}
    path.write_text(json.dumps(record))
    (workspace.root / f"results/runs/{damaged}/run.json").write_text("{")
    unknown = rebuilt(workspace)["unknown"]
    assert [one["name"] for one in unknown["reservations_without_record"]] == [lost]
    assert unknown["damaged_runs"] == [], "the book has what it cost"
    assert [one["name"] for one in unknown["runs_without_price"]] == [free]

    kept = b"".join(line + b"\n" for line in book(workspace).read_bytes().split(b"\n") if b" power {" in line[8:16])
    book(workspace).write_bytes(kept)
    unknown = rebuilt(workspace)["unknown"]
    assert [one["name"] for one in unknown["damaged_runs"]] == [damaged]
    (machine,) = unknown["machines_never_seen_off"]
    assert machine["name"].startswith(f"{INSTANCE} (")
    said = workspace.type("cost", "rebuild", check=0).out
    assert f"unknown: runs whose run.json is damaged\n  {damaged}: its cost:" in said
    assert max(len(line) for line in said.splitlines()) < 140
