"""Machines: ``fcctl hosts ls``, ``fcctl hosts audit``, and open sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from orchestrator.base.clock import iso, utc_minute
from orchestrator.base.json_text import pick, rounded
from orchestrator.base.sanitize import clean, clean_text
from orchestrator.hosts.audit import Audit
from orchestrator.hosts.hosts import Row
from orchestrator.leases.session_rules import money
from orchestrator.machines.cloud import RUN_LABEL, Machine
from orchestrator.machines.targets import SANDBOX_PROJECT
from orchestrator.money.audit import Finding
from orchestrator.money.billable import Orphan, delete_command, delete_machine_command
from orchestrator.money.prices.table import G2
from orchestrator.sessions.session import SessionStatus
from orchestrator.views.blocks import Cell, Grid, Line
from orchestrator.views.figures import duration
from orchestrator.views.table import show, show_blocks
from orchestrator.views.tables.audit import print_accounts


def session_line(one: SessionStatus, now: float) -> str:
    """``l4  $0.71/h  spent $0.32  left $2.68  cap in 3 h 40 min  idle stop in 12 min``; ``now`` is epoch seconds."""
    saved, budget = one.found.saved, money(one.found.saved, one.found.machine, now)
    parts = [
        f"{saved.target.name}  ${budget.usd_per_hour:.2f}/h",
        f"spent ${budget.spent:.2f}",
        f"left ${budget.left:.2f} of ${saved.budget_usd:.2f}",
        f"stopped by the cloud in {duration(budget.seconds_left)}",
    ]
    if one.found.stage != "open":
        parts.append({"starting": "starting", "leaving": "stopping"}[one.found.stage])
    elif one.runs_on_it:
        parts.append(f"running {clean_text(one.runs_on_it[0])}")
    elif one.idle_stop is not None:
        parts.append(f"idle stop in {duration(max(0.0, one.idle_stop - now))}")
    return "  ".join(parts)


def session_json(one: SessionStatus, now: float) -> dict[str, Any]:
    saved, machine, budget = one.found.saved, one.found.machine, money(one.found.saved, one.found.machine, now)
    return {
        "session_id": saved.session_id,
        "target": saved.target.name,
        "stage": one.found.stage,
        "instance": machine.name if machine else None,
        "zone": machine.zone if machine else None,
        "started": machine.started if machine else None,
        "deadline": machine.deadline if machine else None,
        "usd_per_hour": budget.usd_per_hour,
        "spent_usd": round(budget.spent, 6),
        "left_usd": round(budget.left, 6),
        "budget_usd": saved.budget_usd,
        "seconds_to_cap": round(budget.seconds_left, 3),
        "idle_stop": one.idle_stop,
        "runs_on_it": list(one.runs_on_it),
    }


_STYLES = {
    "run": "good", "session": "hint", "kept": "hint", "up": "hint", "off": "soft", "foreign": "doubt",
    "person": "doubt", "stray": "bad",
}  # fmt: skip
_COLUMNS = ("TARGET", "KIND", "STATE", "ZONE", "ADDRESS", "GPU", "$/H", "SINCE", "ENDS", "NOTE")


def gpus(machine: Machine) -> str:
    """``1 x L4``; empty for a machine without a GPU that is known of."""
    named = [
        f"{count} x {kind.removeprefix('nvidia-').removeprefix('tesla-').upper()}"
        for kind, count in machine.accelerators.items()
    ]
    if not named and machine.machine_type in G2:
        named = [f"{G2[machine.machine_type][1]} x L4"]
    return ", ".join(named)


# ---------------------------------------------------------------------------------------------------------------- JSON
def finding_json(finding: Finding) -> dict[str, Any]:
    machine = finding.machine
    return {
        **pick(machine, "project zone name id status billed machine_type spot"),
        **pick(finding, "verdict why usd_per_hour"),
        "gpus": gpus(machine) or None,
        "run": machine.labels.get(RUN_LABEL),
        "since": iso(finding.since),
        "usd_so_far": rounded(finding.usd_so_far, 4),
        "fence": iso(finding.fence),
        "usd_by_then": rounded(finding.usd_by_then, 4),
        "usd_per_month": rounded(finding.usd_per_month, 4),
        "delete": None if machine.billed else delete_machine_command(machine),
    }


def row_json(row: Row) -> dict[str, Any]:
    machine = None if row.finding is None else finding_json(row.finding)
    return {**pick(row, "target kind state address usd_per_hour note member_of"), "machine": machine}


def orphan_json(orphan: Orphan) -> dict[str, Any]:
    thing = orphan.thing
    return {
        **pick(thing, "kind project place name"),
        "gb": thing.gb or None,
        "created": iso(thing.created),
        "usd_per_month": rounded(orphan.usd_per_month, 4),
        "delete": delete_command(thing),
    }


# -------------------------------------------------------------------------------------------------------------- people
def print_rows(rows: list[Row], console: Console, now: float) -> None:
    """One line a machine; what does not fit the terminal stands below the table."""
    narrow = tuple(map(_COLUMNS.index, ("NOTE", "ADDRESS", "KIND", "ZONE", "GPU")))
    show_blocks(console, [Grid(_COLUMNS, tuple(_cells(row, now) for row in rows), optional=narrow, below=narrow)])


def _cells(row: Row, now: float) -> Line:
    finding, machine = row.finding, row.finding.machine if row.finding else None
    ends = ""
    if finding is not None and finding.machine.billed:
        ends = "never" if finding.fence is None else f"in {duration(max(0.0, finding.fence - now))}"
    member = f"member of {row.member_of}" if row.member_of else ""
    state = Cell(clean(row.state, 40), kind=_STYLES[finding.verdict] if finding else "")
    cells = (
        row.target or f"({machine.name if machine else ''})", row.kind, state, machine.zone if machine else "",
        row.address or "", gpus(machine) if machine else "",
        "" if row.usd_per_hour is None else f"{row.usd_per_hour:.2f}", _ago(finding.since, now) if finding else "",
        ends, ": ".join(part for part in (member, row.note) if part),
    )  # fmt: skip
    return tuple(cell if isinstance(cell, Cell) else clean(cell, 200) for cell in cells)


def print_audit(audit: Audit, console: Console, now: float) -> None:
    """Machines that are on, each with why, what it has cost and what ends it; then what is billed by the month."""
    lines = [
        line for one in sorted(audit.findings, key=lambda one: not one.machine.billed) for line in _finding(one, now)
    ]
    for orphan in audit.leftovers:
        what, command = orphan_lines(orphan, now)
        lines += [(what, "yellow"), (f"  {command}", "dim")]
    show(console, *((clean(line, 400), style) for line, style in lines))
    print_accounts(audit.accounts, console, now)
    lines = [(f"{project} is emulated on this computer: no cost", "dim") for project in audit.emulated]
    lines += [(f"no answer: {one.what} of {one.project}: {one.why}", "red") for one in audit.unanswered]
    show(console, *((clean(line, 400), style) for line, style in lines))


def orphan_lines(orphan: Orphan, now: float) -> tuple[str, str]:
    """What it is, how old and at what price; and the command that deletes it."""
    thing = orphan.thing
    price = "price unknown" if orphan.usd_per_month is None else f"${orphan.usd_per_month:.2f} a month"
    size = f" of {thing.gb} GiB" if thing.gb else ""
    made = f", created {_ago(thing.created, now)} ago" if thing.created is not None else ""
    return f"{thing.kind} {thing.name}{size} in {thing.place}{made}: unused, {price}", delete_command(thing)


def _finding(finding: Finding, now: float) -> Iterator[tuple[str, str]]:
    machine, style = finding.machine, _STYLES[finding.verdict]
    spot = ", spot" if machine.spot else ""
    what = f"{machine.name} in {machine.zone} ({machine.machine_type}{spot}) {machine.status}"
    if not machine.billed:
        since = f" {_ago(finding.since, now)} ago" if finding.since is not None else ""
        usd = finding.usd_per_month
        price = "the price of its disks is unknown" if usd is None else f"${usd:.2f} a month"
        yield f"{what}{since}: {finding.why}; {price}", style
        if machine.project != SANDBOX_PROJECT:  # gcloud would ask the real cloud
            yield f"  {delete_machine_command(machine)}", "dim"
        return
    yield f"{what}: {finding.why}", style
    so_far = "price unknown" if finding.usd_so_far is None else f"${finding.usd_so_far:.2f} so far"
    rate = "" if finding.usd_per_hour is None else f" at ${finding.usd_per_hour:.2f} an hour"
    yield (
        f"  running for {_ago(finding.since, now) or 'an unknown time'}: {so_far}{rate}; {_limit(finding, now)}",
        "dim",
    )


def _limit(finding: Finding, now: float) -> str:
    if finding.fence is None:
        return "no max run duration; only its own shutdown timer, if it has one, stops it"
    verb = "deletes" if finding.machine.termination_action == "DELETE" else "stops"
    cost = "" if finding.usd_by_then is None else f", for ${finding.usd_by_then:.2f} in total"
    return f"the cloud {verb} it in {duration(max(0.0, finding.fence - now))} ({utc_minute(finding.fence, now)}){cost}"


def _ago(since: float | None, now: float) -> str:
    return "" if since is None else duration(max(0.0, now - since))
