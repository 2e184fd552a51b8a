"""Machines: ``fcctl hosts ls``, open sessions, ``fcctl hosts audit``; the ledger against the cloud's records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from rich.console import Console

from orchestrator.base.clock import iso, utc_minute
from orchestrator.base.errors import plural
from orchestrator.base.json_text import pick, rounded
from orchestrator.base.sanitize import clean, clean_text
from orchestrator.hosts.audit import Audit
from orchestrator.hosts.hosts import Row
from orchestrator.leases.session_rules import money
from orchestrator.machines.cloud import RUN_LABEL, Machine
from orchestrator.machines.power_history import PowerInterval
from orchestrator.machines.targets import SANDBOX_PROJECT
from orchestrator.money.audit import Account, Finding, Time
from orchestrator.money.billable import Orphan, delete_command, delete_machine_command
from orchestrator.money.ledger import SLIGHT_S, UsageRecord
from orchestrator.money.prices.table import G2
from orchestrator.runs.cost.rebuild import Rebuilt, UnknownKind
from orchestrator.sessions.session import SessionStatus
from orchestrator.views.blocks import Cell, Grid, Line
from orchestrator.views.figures import duration
from orchestrator.views.table import Piece, show, show_blocks, unbroken


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
        "session_id": saved.session_id, "target": saved.target.name, "stage": one.found.stage,
        "instance": machine.name if machine else None, "zone": machine.zone if machine else None,
        "started": machine.started if machine else None, "deadline": machine.deadline if machine else None,
        "usd_per_hour": budget.usd_per_hour, "spent_usd": round(budget.spent, 6), "left_usd": round(budget.left, 6),
        "budget_usd": saved.budget_usd, "seconds_to_cap": round(budget.seconds_left, 3), "idle_stop": one.idle_stop,
        "runs_on_it": list(one.runs_on_it),
    }  # fmt: skip


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
        **pick(finding, "verdict why usd_per_hour"), "gpus": gpus(machine) or None,
        "run": machine.labels.get(RUN_LABEL), "since": iso(finding.since), "usd_so_far": rounded(finding.usd_so_far, 4),
        "fence": iso(finding.fence), "usd_by_then": rounded(finding.usd_by_then, 4),
        "usd_per_month": rounded(finding.usd_per_month, 4),
        "delete": None if machine.billed else delete_machine_command(machine),
    }  # fmt: skip


def row_json(row: Row) -> dict[str, Any]:
    machine = None if row.finding is None else finding_json(row.finding)
    return {**pick(row, "target kind state address usd_per_hour note member_of"), "machine": machine}


def orphan_json(orphan: Orphan) -> dict[str, Any]:
    thing = orphan.thing
    return {
        **pick(thing, "kind project place name"), "gb": thing.gb or None, "created": iso(thing.created),
        "usd_per_month": rounded(orphan.usd_per_month, 4), "delete": delete_command(thing),
    }  # fmt: skip


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
    lines += [(f"  hint: {hint}", "dim") for hint in dict.fromkeys(one.hint for one in audit.unanswered) if hint]
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


# ------------------------------------------------------------------------------------------------ the ledger
def account_json(account: Account) -> dict[str, Any]:
    """One machine. ``difference`` is what the ledger had beyond the cloud's records before this audit (below zero: what
    it lacked, and has now); ``beyond_cloud`` what runs claim beyond them, which is not in the ledger."""
    return {
        **pick(account.record, "project zone name target emulated"),
        **pick(account, "there agrees"),
        "id": account.record.instance_id,
        "cloud": _sum(account.cloud_s, account.cloud_usd),
        "ledger": _sum(account.ledger_s, account.ledger_usd),
        "difference": _sum(account.difference_s, account.difference_usd),
        "beyond_cloud": _sum(account.beyond_s, account.beyond_usd),
        "times": [
            {**_span(time.span), **_sum(*_bill(time)), "used_by_runs_s": round(time.used_s, 3),
             "for_nobody": time.for_nobody, "upper_bound": time.span.bound}
            for time in account.times
        ],
        "before_the_ledger": [_span(time) for time in account.earlier],
    }  # fmt: skip


def _bill(time: Time) -> tuple[float, float]:
    return time.span.billed_s, time.span.usd(time.span.billed_s)


def _span(time: UsageRecord | PowerInterval) -> dict[str, Any]:
    return {"started": iso(time.started), "stopped": iso(time.stopped), "user": time.user or None}


def _sum(seconds: float, usd: float) -> dict[str, float]:
    return {"seconds": round(seconds, 3), "usd": round(usd, 6)}


def print_accounts(accounts: Sequence[Account], console: Console, now: float) -> None:
    """Each machine: whether the books agree, and what does not fit."""
    for account in accounts:
        if account.times or account.earlier:
            show(console, *((clean(line, 400), style) for line, style in _lines(account, now)))


def _lines(account: Account, now: float) -> Iterator[tuple[str, str]]:
    presence = "" if account.there else ", deleted" if account.there is False else ", whose state is unknown"
    record = account.record
    name = f"{record.name} in {record.zone} ({record.instance_id}){presence}"
    cloud = f"the cloud ran it for {_much(account.cloud_s, account.cloud_usd)}"
    if abs(account.difference_s) < SLIGHT_S:
        yield f"ledger of {name}: {cloud}; the ledger agrees", "dim"
    else:
        had = f"the ledger had {_much(account.ledger_s, account.ledger_usd)}"
        much = _much(abs(account.difference_s), abs(account.difference_usd))
        less = "little" if account.difference_s < 0 else "much"
        yield f"ledger of {name}: {cloud}; {had}: {much} too {less}, corrected", "yellow"
    if account.beyond_s >= SLIGHT_S:
        beyond = _much(account.beyond_s, account.beyond_usd)
        yield (
            f"  runs recorded {beyond} more; the ledger does not count it: the cloud's records take precedence",
            "yellow",
        )
    for time in account.times:
        yield from _time(time, now)
    if account.earlier:
        times, since = plural(len(account.earlier), "time"), utc_minute(account.earlier[0].started, now)
        yield f"  it was on {times} since {since}, before the ledger began: not in the ledger", "dim"


def _time(time: Time, now: float) -> Iterator[tuple[str, str]]:
    span = time.span
    until = "now" if span.stopped is None else utc_minute(span.stopped, now)
    when = f"{utc_minute(span.started, now)} to {until}"
    if span.bound:
        yield f"  {when}: stop time unknown; this is the latest possible", "yellow"
    if time.for_nobody:
        by = f", started by {span.user}" if span.user else ""
        yield f"  {when}, {_much(*_bill(time))}: no run of this workspace used the machine{by}", "yellow"


def _much(seconds: float, usd: float) -> str:
    return f"{duration(seconds)} (${usd:.4f})"


_HEADS: dict[UnknownKind, str] = {
    "damaged_runs": "runs whose run.json is damaged",
    "damaged_sessions": "sessions that cannot be read",
    "reservations_without_record": "reservations without a record",
    "machines_never_seen_off": "machines with a recorded start but no recorded stop",
    "runs_without_price": "runs on machines without a price",
}


def rebuilt_json(rebuilt: Rebuilt, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "runs": [{"run_id": one.run_id, "usd": one.cost.usd} for one in rebuilt.runs],
        "usd": round(rebuilt.usd, 6),
        "machine_records": len(rebuilt.power),
        "reservations": [pick(one, "reservation_id owner target usd") for one in rebuilt.reservations],
        "damaged_lines": rebuilt.damaged,
        "set_aside": rebuilt.aside,
        "unknown": {
            kind: [pick(one, "name why") for one in rebuilt.unknown if one.kind == kind]
            for kind in get_args(UnknownKind)
        },
    }


def print_rebuilt(rebuilt: Rebuilt, console: Console, *, dry_run: bool) -> None:
    show(console, *_rebuilt_lines(rebuilt, dry_run=dry_run))


def _rebuilt_lines(rebuilt: Rebuilt, *, dry_run: bool) -> Iterator[Piece]:
    if not (rebuilt.runs or rebuilt.power or rebuilt.reservations):
        yield "nothing to add to the ledger"
    else:
        yield "would be added to the ledger:" if dry_run else "added to the ledger:", "bold"
        yield f"  runs                {len(rebuilt.runs)}, ${rebuilt.usd:.2f}"
        yield f"  records of machines {len(rebuilt.power)}"
        yield f"  reservations        {len(rebuilt.reservations)}"
        yield from (f"    ${one.usd:.2f} for {clean(one.owner_id, 80)}" for one in rebuilt.reservations)
    if rebuilt.damaged:
        yield f"damaged lines: {rebuilt.damaged}"
        where = "would be set aside" if rebuilt.aside is None else f"they are in {rebuilt.aside}"
        yield unbroken(f"  {where}")
    for kind, head in _HEADS.items():
        unknown = [one for one in rebuilt.unknown if one.kind == kind]
        if unknown:
            yield f"unknown: {head}", "yellow"
        yield from (f"  {clean(thing.name, 90)}: {clean(thing.why, 200)}" for thing in unknown)
