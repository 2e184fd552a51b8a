"""Machines as people and programs read them: ``fcctl hosts ls`` and ``fcctl hosts audit``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.base.clock import iso
from orchestrator.base.sanitize import clean
from orchestrator.hosts.audit import Audit, Unanswered
from orchestrator.hosts.hosts import Row
from orchestrator.machines.cloud import RUN_LABEL, Machine
from orchestrator.money.audit import Finding, Orphan, delete_command, delete_machine_command
from orchestrator.money.prices.table import G2
from orchestrator.views.live.run import duration
from orchestrator.views.tables.audit_ledger import print_accounts
from orchestrator.views.tables.cells import print_trimmed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_STYLES = {
    "run": "green",
    "session": "cyan",
    "kept": "cyan",
    "up": "cyan",
    "off": "dim",
    "foreign": "yellow",
    "person": "yellow",
    "stray": "red",
}


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
        "project": machine.project,
        "zone": machine.zone,
        "name": machine.name,
        "id": machine.id,
        "status": machine.status,
        "billed": machine.billed,
        "machine_type": machine.machine_type,
        "gpus": gpus(machine) or None,
        "spot": machine.spot,
        "verdict": finding.verdict,
        "why": finding.why,
        "run": machine.labels.get(RUN_LABEL),
        "since": iso(finding.since),
        "usd_per_hour": finding.usd_per_hour,
        "usd_so_far": _rounded(finding.usd_so_far),
        "fence": iso(finding.fence),
        "usd_by_then": _rounded(finding.usd_by_then),
        "usd_per_month": _rounded(finding.usd_per_month),
        "delete": None if machine.billed else delete_machine_command(machine),
    }


def row_json(row: Row) -> dict[str, Any]:
    machine = None if row.finding is None else finding_json(row.finding)
    return {
        "target": row.target,
        "kind": row.kind,
        "state": row.state,
        "address": row.address,
        "usd_per_hour": row.usd_per_hour,
        "note": row.note,
        "member_of": row.member_of,
        "machine": machine,
    }


def leftover_json(orphan: Orphan) -> dict[str, Any]:
    leftover = orphan.thing
    return {
        "kind": leftover.kind,
        "project": leftover.project,
        "place": leftover.place,
        "name": leftover.name,
        "gb": leftover.gb or None,
        "created": iso(leftover.created),
        "usd_per_month": _rounded(orphan.usd_per_month),
        "delete": delete_command(leftover),
    }


def unanswered_json(one: Unanswered) -> dict[str, Any]:
    return {"project": one.project, "what": one.what, "why": one.why}


def _rounded(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 4)


# -------------------------------------------------------------------------------------------------------------- people
_COLUMNS = ("TARGET", "KIND", "STATE", "ZONE", "ADDRESS", "GPU", "$/H", "SINCE", "ENDS", "WHAT")
#: What narrower and narrower terminals have below the table.
_BELOW: tuple[tuple[str, ...], ...] = (
    (), ("WHAT",), ("ADDRESS", "WHAT"), ("KIND", "ZONE", "ADDRESS", "WHAT"), ("KIND", "ZONE", "ADDRESS", "GPU", "WHAT"),
)  # fmt: skip


def print_rows(rows: list[Row], console: Console, now: float) -> None:
    """One line a machine; what does not fit the terminal stands below the table."""
    from rich.measure import Measurement
    from rich.text import Text

    shown = [(_cells(row, now), _style(row.finding)) for row in rows]
    unlimited = console.options.update(width=10_000)
    for below in _BELOW:
        columns = [name for name in _COLUMNS if name not in below]
        table = _table(*columns)
        for cells, style in shown:
            table.add_row(*(cells[name] for name in columns), style=style)
        if Measurement.get(console, unlimited, table).maximum <= console.width:
            break
    print_trimmed(console, table, console.width)
    for cells, style in shown:
        facts = ", ".join(cells[name] for name in below if cells[name])
        if facts:
            print_trimmed(console, Text(f"{cells['TARGET']}: {facts}", style), console.width)


def _cells(row: Row, now: float) -> dict[str, str]:
    machine = row.finding.machine if row.finding else None
    cells = (
        row.target or f"({machine.name if machine else ''})", row.kind, row.state, machine.zone if machine else "",
        row.address or "", gpus(machine) if machine else "", _price(row.usd_per_hour),
        _ago(row.finding.since, now) if row.finding else "", _ends(row.finding, now), _what(row),
    )  # fmt: skip
    return {name: clean(cell, 200) for name, cell in zip(_COLUMNS, cells, strict=True)}


def _what(row: Row) -> str:
    like = f"member of {row.member_of}" if row.member_of else ""
    return ": ".join(part for part in (like, row.note) if part)


def print_audit(audit: Audit, console: Console, now: float) -> None:
    """Machines that are on, each with why, what it has cost and what ends it; then what is billed by the month."""
    for finding in sorted(audit.findings, key=lambda one: not one.machine.billed):
        for text, style in _lines(finding, now):
            console.print(clean(text, 400), style=style, markup=False)
    for orphan in audit.leftovers:
        what, command = leftover_lines(orphan, now)
        console.print(clean(what, 400), style="yellow", markup=False)
        console.print(clean(f"  {command}", 400), style="dim", markup=False)
    print_accounts(audit.accounts, console)
    for project in audit.emulated:
        console.print(clean(f"{project} is emulated on this computer: nobody pays", 400), style="dim", markup=False)
    for one in audit.unanswered:
        text = f"not asked: {one.what} of {one.project}: {one.why}"
        console.print(clean(text, 400), style="red", markup=False)


def leftover_lines(orphan: Orphan, now: float) -> tuple[str, str]:
    """What it is, how old and at what price; and the command that deletes it."""
    leftover, usd = orphan.thing, orphan.usd_per_month
    price = "no price known" if usd is None else f"${usd:.2f} a month"
    size = f" of {leftover.gb} GiB" if leftover.gb else ""
    made = f", made {duration(max(0.0, now - leftover.created))} ago" if leftover.created is not None else ""
    what = f"{leftover.kind} {leftover.name}{size} in {leftover.place}{made}: nothing uses it, {price}"
    return what, delete_command(leftover)


def _lines(finding: Finding, now: float) -> Iterator[tuple[str, str]]:
    machine = finding.machine
    spot = ", spot" if machine.spot else ""
    what = f"{machine.name} in {machine.zone} ({machine.machine_type}{spot}) {machine.status}"
    if not machine.billed:
        since = f" {_ago(finding.since, now)} ago" if finding.since is not None else ""
        usd = finding.usd_per_month
        price = "no price is known for its disks" if usd is None else f"${usd:.2f} a month"
        yield f"{what}{since}: {finding.why}; {price}", _style(finding)
        yield f"  {delete_machine_command(machine)}", "dim"
        return
    yield f"{what}: {finding.why}", _style(finding)
    so_far = "no price is known" if finding.usd_so_far is None else f"${finding.usd_so_far:.2f} so far"
    rate = "" if finding.usd_per_hour is None else f" at ${finding.usd_per_hour:.2f} an hour"
    yield f"  on for {_ago(finding.since, now) or 'an unknown time'}: {so_far}{rate}; {_fence(finding, now)}", "dim"


def _fence(finding: Finding, now: float) -> str:
    if finding.fence is None:
        return "nothing but its own shutdown timer, if it has one, ends that"
    verb = "deletes" if finding.machine.termination_action == "DELETE" else "stops"
    left = max(0.0, finding.fence - now)
    cost = "" if finding.usd_by_then is None else f", at ${finding.usd_by_then:.2f} in all"
    return f"the cloud {verb} it in {duration(left)} ({iso(finding.fence)}){cost}"


def _ends(finding: Finding | None, now: float) -> str:
    if finding is None or not finding.machine.billed:
        return ""
    return "never" if finding.fence is None else f"in {duration(max(0.0, finding.fence - now))}"


def _ago(since: float | None, now: float) -> str:
    return "" if since is None else duration(max(0.0, now - since))


def _price(usd: float | None) -> str:
    return "" if usd is None else f"{usd:.2f}"


def _style(finding: Finding | None) -> str:
    return "" if finding is None else _STYLES[finding.verdict]


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
