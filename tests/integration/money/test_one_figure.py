"""What short runs cost: one figure in the ledger, by whatever it is summed, in the audit and in the cloud's bill."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.tiers import sampled
from tests.support.virtual_cloud import CloudWorkspace

pytest.importorskip("google.cloud.compute_v1")


def figures(workspace: CloudWorkspace) -> tuple[float, float]:
    """Seconds and dollars of the machine; every output has the same, and none a negative line."""
    (account,) = workspace.type("--json", "hosts", "audit", check=0).json["ledger"]
    lines = workspace.type("--json", "cost", "ledger", "--lines", check=0).json["lines"]
    rows = csv.DictReader(io.StringIO(workspace.type("cost", "ledger", "--csv", check=0).out))
    assert min(float(row[key]) for row in rows for key in ("seconds", "usd")) >= 0
    of_machine = [line for line in lines if not line["what"]]
    address = sum(line["usd"] for line in lines if line["activity"] == "address")
    seconds, usd = (sum(line[key] for line in of_machine) for key in ("seconds", "usd"))
    for by in ("run", "activity", "machine", "day"):
        totals = workspace.type("--json", "cost", "ledger", "--by", by, check=0).json["totals"]
        assert min(total["usd"] for total in totals) >= 0
        assert sum(total["seconds"] for total in totals) == pytest.approx(seconds, abs=1e-3)
        assert sum(total["usd"] - total["standing_usd"] for total in totals) == pytest.approx(usd + address, abs=1e-6)
    for book in ("cloud", "ledger"):
        assert account[book] == {
            "seconds": pytest.approx(seconds, abs=1e-2), "usd": pytest.approx(usd, abs=1e-5),
        }  # fmt: skip
    assert account["beyond_cloud"]["seconds"] < 0.1
    assert account["agrees"]
    return seconds, usd


def test_each_start_of_a_machine_costs_a_minute_and_its_run_says_so(
    tmp_path: Path, private_home: Path, cloud: Emulator
) -> None:
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud)
    for _ in range(3):
        workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    seconds, usd = figures(workspace)
    assert [run["cost"]["billed_s"] for run in workspace.runs().values()] == [60.0] * 3
    assert seconds == pytest.approx(180)
    assert usd == pytest.approx(sum(run["cost"]["usd"] for run in workspace.runs().values()), abs=1e-5)


@pytest.mark.parametrize("ahead_s", sampled([0.0, 900.0, -900.0], keep=(900.0,)))
def test_runs_that_share_a_start_share_its_minute(
    ahead_s: float, tmp_path: Path, private_home: Path, cloud: Emulator
) -> None:
    """Also where this computer's clock is wrong, which alone knows when a run took a machine that was on."""
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud, ahead_s, release="keep", keep_minutes=30)
    for _ in range(3):
        workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    workspace.type("hosts", "down", "l4", check=0)
    seconds, _ = figures(workspace)
    assert seconds == pytest.approx(60)
    assert sum(run["cost"]["billed_s"] for run in workspace.runs().values()) < 60
