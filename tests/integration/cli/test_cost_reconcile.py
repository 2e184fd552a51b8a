"""``fcctl cost reconcile --billing-export``: a ledger on disk beside a file of Google's lines."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.machines.cloud import MANAGED_LABEL
from orchestrator.machines.provision.spec import Purpose
from orchestrator.money.billable import ResourceRecord
from orchestrator.money.ledger import UsageRecord
from orchestrator.money.prices import file as price_file
from orchestrator.runs.job.prepare import tree_name
from tests.support.command import Fcctl
from tests.support.spending import book_in
from tests.unit.money.test_billing_export import ROW, as_csv, as_json

CONFIG = """\
[project]
name = "flashcore"
[targets.l4]
kind = "gcp"
project = "my-project"
instance = "vm"
zones = ["us-west1-c"]
"""
RATE = 0.706832


def labels(workspace: Path) -> list[dict[str, str]]:
    """Those of a machine that fcctl made for this workspace."""
    given = Purpose("run", tree_name("flashcore", workspace)).labels()
    return [{"key": key, "value": value} for key, value in {MANAGED_LABEL: "yes", **given}.items()]


def at(day: int, hour: int) -> float:
    return datetime(2026, 11, day, hour, tzinfo=UTC).timestamp()


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Path:
    """On for three hours across midnight of UTC, and with a disk that is a month old."""
    (tmp_path / "fcctl.toml").write_text(CONFIG)
    books = book_in(price_file.folder(), project="flashcore", results=tmp_path / "results")
    place = {"project": "my-project", "name": "vm", "target": "l4"}
    books.add_usage(
        UsageRecord(zone="us-west1-c", instance_id="4242", usd_per_hour=RATE, started=at(10, 23), stopped=at(11, 2),
                 seen=at(11, 3), **place)  # type: ignore[arg-type]
    )  # fmt: skip
    for seen in (at(1, 0), at(20, 0)):
        books.add_resource(
            ResourceRecord(kind="disk", place="us-west1-c", gb=100, type="pd-balanced", created=at(1, 0), seen=seen,
                    usd_per_month=10.0, **place)  # type: ignore[arg-type]
        )  # fmt: skip
    return tmp_path


def line(
    day: int, hour: int, cost: float, sku: str = "G2 Instance Core running in Oregon", **more: Any
) -> dict[str, Any]:
    times = {
        "usage_start_time": f"2026-11-{day} {hour:02d}:00:00 UTC",
        "usage_end_time": f"2026-11-{day} {hour:02d}:59:59 UTC",
    }
    return {**ROW, **times, "cost": cost, "sku": {"description": sku}, "credits": [], "labels": [], **more}


def lines(rate: float = RATE) -> list[dict[str, Any]]:
    """Google's side of it: each hour as cores and a GPU, the disk by the hour, and another team's machine."""
    disk = {"name": "vm", "global_name": "//compute.googleapis.com/projects/1/zones/us-west1-c/disk/777"}
    other = {"name": "theirs", "global_name": "//compute.googleapis.com/projects/1/zones/us-west1-c/instances/9"}
    found = [line(day, hour, part * rate) for day, hour in ((10, 23), (11, 0), (11, 1)) for part in (0.2, 0.8)]
    days = [(day, hour) for day in (10, 11) for hour in range(24)]
    found += [line(day, hour, 10 / 730, "Balanced PD Capacity in Oregon", resource=disk) for day, hour in days]
    return [*found, line(10, 5, 3.0, resource=other)]


@pytest.mark.parametrize("form", [as_json, as_csv])
def test_books_that_agree(fcctl: Fcctl, workspace: Path, form: Any) -> None:
    (workspace / "lines").write_bytes(b"".join(form(*lines())))
    done = fcctl("cost", "reconcile", "--billing-export", "lines", cwd=workspace)
    assert (done.code, done.err) == (0, "")
    assert "From 2026-11-10 00:00 to 2026-11-11 23:59 UTC" in done.out
    assert "they agree within 5 %" in done.out
    assert "Not compared: 1 line of the file, $3.00" in done.out
    found = fcctl("cost", "reconcile", "--billing-export", "lines", "--json", cwd=workspace).json
    assert found["agrees"] is True
    machine = [one for one in found["days"] if one["kind"] == "machine"]
    assert [(one["day"], one["id"]) for one in machine] == [("2026-11-10", "4242"), ("2026-11-11", "4242")]
    assert [one["ledger_usd"] for one in machine] == [pytest.approx(RATE, abs=1e-4), pytest.approx(2 * RATE, abs=1e-4)]
    (disk,) = [one for one in found["things"] if one["kind"] == "disk"]
    assert disk["ledger_usd"] == pytest.approx(48 * 10 / 730, rel=1e-3)
    assert disk["google_usd"] == pytest.approx(48 * 10 / 730, rel=1e-3)


def test_books_that_differ_end_with_11_and_say_what_to_do(fcctl: Fcctl, workspace: Path) -> None:
    """A machine dearer by half, hours that nobody saw, and a machine that Google does not have yet."""
    forgotten = line(11, 9, 0.9, labels=labels(workspace), resource={"name": "old-vm", "global_name": ""})
    (workspace / "lines").write_bytes(b"".join(as_json(*lines(RATE * 1.5), forgotten)))
    done = fcctl("cost", "reconcile", "--billing-export", "lines", cwd=workspace)
    assert done.code == 11
    assert "old-vm: only Google has this cost: fcctl hosts audit" in done.out
    assert "vm (4242): the ledger has $1.06 less: fcctl hosts audit, and fcctl cost prices --refresh" in done.out
    found = fcctl("cost", "reconcile", "--billing-export", "lines", "--json", cwd=workspace)
    assert found.code == 11
    assert found.json["differing"] == ["old-vm", "vm (4242)"]
    assert fcctl("cost", "reconcile", "--billing-export", "lines", "--tolerance", "100", cwd=workspace).code == 0


def test_files_that_are_none(fcctl: Fcctl, workspace: Path) -> None:
    missing = fcctl("cost", "reconcile", "--billing-export", "none", cwd=workspace)
    assert (missing.code, "the file none does not exist" in missing.err) == (7, True)
    folder = fcctl("cost", "reconcile", "--billing-export", ".", cwd=workspace)
    assert (folder.code, "cannot be read" in folder.err) == (2, True)
    (workspace / "bad").write_bytes(b"".join(as_json(*lines())) + b'{"cost": "\\u001b[31m"}\n')
    bad = fcctl("cost", "reconcile", "--billing-export", "bad", "--json", cwd=workspace)
    assert bad.code == 2
    assert json.loads(bad.err)["error"]["message"].startswith("bad:56: usage_start_time is ''")


def test_names_from_the_file_cannot_write_on_the_terminal(fcctl: Fcctl, workspace: Path) -> None:
    evil = line(11, 9, 0.9, labels=labels(workspace), resource={"name": "a\x1b]0;x\x07[bold]b", "global_name": ""})
    (workspace / "lines").write_bytes(b"".join(as_json(evil)))
    done = fcctl("cost", "reconcile", "--billing-export", "lines", cwd=workspace)
    assert "\x1b]" not in done.out
    assert "[bold]b" in done.out
