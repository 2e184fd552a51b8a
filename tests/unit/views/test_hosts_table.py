"""``fcctl hosts ls`` on terminals of all widths."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from orchestrator.hosts.audit import Audit
from orchestrator.hosts.hosts import Row
from orchestrator.machines.cloud import Machine
from orchestrator.machines.power_history import PowerInterval
from orchestrator.money.audit import Account, Finding, Time
from orchestrator.money.ledger import UsageRecord
from orchestrator.views.tables.hosts import print_audit, print_rows

NOW = 1795266693.0
ERROR = (
    "the cloud could not be asked: 503 The service is currently unavailable, after 5 attempts in 64 s"
    " (aggregatedList of instances of my-project)"
)


def machine(status: str, project: str = "my-project") -> Machine:
    return Machine(
        project=project, zone="us-central1-a", name="l4-dev", id="1", status=status, machine_type="g2-standard-4",
        started=NOW - 4000,
    )  # fmt: skip


KEPT = Finding(
    machine("RUNNING"), "kept", "kept on for the next run (release = keep in the target)", NOW - 4000, 0.7068, 0.8,
    NOW + 9000, 2.6,
)  # fmt: skip


def rows() -> list[Row]:
    return [
        Row("local", "local", "here", usd_per_hour=0.0, note="this computer"),
        Row("bigger-machine-of-24-abc", "gcp", "RUNNING", KEPT, "203.0.113.254", 0.7068, KEPT.why),
        Row("other", "gcp", "unknown", usd_per_hour=0.7068, note=ERROR),
        Row(
            "box", "ssh", "-", address="a-long-name.of-a.gpu-host.example.com", note="not asked: fcctl doctor --on box"
        ),
    ]


def printed(width: int) -> str:
    out = io.StringIO()
    print_rows(rows(), Console(file=out, width=width, highlight=False, color_system=None), NOW)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 160, 400])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(width: int) -> None:
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for fact in (ERROR, "203.0.113.254", "us-central1-a", "1 x L4", "0.71", "a-long-name.of-a.gpu-host.example.com",
                 "in 2 h 30 min", "kept on for the next run (release = keep in the target)"):  # fmt: skip
        assert fact in words


def test_at_80_columns_each_machine_is_one_line_of_the_table_and_its_error_is_below() -> None:
    table, below = printed(80).splitlines()[:5], printed(80).splitlines()[5:]
    assert table[0].split() == ["TARGET", "STATE", "GPU", "$/H", "SINCE", "ENDS"]
    assert [line.split()[0] for line in table[1:]] == ["local", "bigger-machine-of-24-abc", "other", "box"]
    assert below[0] == "local: local, this computer"
    assert any(line.startswith("other: gcp, the cloud could not be asked") for line in below)


def test_where_there_is_room_all_is_in_the_table() -> None:
    assert len(printed(400).splitlines()) == 5


def audited(*findings: Finding, **more: Any) -> str:
    out = io.StringIO()
    print_audit(Audit(findings, (), (), ("my-project",), **more), Console(file=out, width=200), NOW)
    return out.getvalue()


@pytest.mark.parametrize(("project", "named"), [("my-project", True), ("fcctl-sandbox", False)])
def test_gcloud_is_named_only_for_machines_that_it_knows(project: str, *, named: bool) -> None:
    off = machine("TERMINATED", project)
    text = audited(Finding(off, "off", "stopped", NOW - 60, None, None, None, None, 10.0))
    assert "l4-dev in us-central1-a" in text
    assert ("gcloud compute instances delete" in text) is named


def test_an_audit_has_times_for_people() -> None:
    span = UsageRecord(
        project="p", zone="us-central1-a", name="l4-dev", instance_id="1", target="l4", usd_per_hour=0.7068,
        started=NOW - 90_000, stopped=NOW - 4000, seen=NOW, bound=True,
    )  # fmt: skip
    earlier = (PowerInterval(NOW - 900_000, NOW - 800_000),)
    account = Account(span, there=True, times=(Time(span, 0.0),), ledger_s=0.0, ledger_usd=0.0, beyond_s=0.0,
                      beyond_usd=0.0, earlier=earlier)  # fmt: skip
    text = audited(KEPT, accounts=(account,))
    assert "the cloud stops it in 2 h 30 min (15:41 UTC)" in text
    assert "2026-11-20 12:11 UTC to 12:04 UTC, 23 h 53 min ($16.8847): no run of this workspace" in text
    assert "it was on 1 time since 2026-11-11 03:11 UTC, before the ledger began" in text
    assert re.search(r"\dT\d", text) is None
