"""The ledger against the cloud's own books, as ``fcctl hosts audit`` and ``fcctl cost reconcile`` show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchestrator.base.clock import iso
from orchestrator.base.sanitize import clean
from orchestrator.money.billing.compare import SLIGHT_USD, Comparison, Row
from orchestrator.money.ledger import SLIGHT_S
from orchestrator.money.reconcile import Account, Time
from orchestrator.views.live.run import duration
from orchestrator.views.tables.cells import table, text
from orchestrator.views.tables.cost_section import usd

if TYPE_CHECKING:
    from rich.console import Console

#: Of a time of being on that no run explains.
NOBODY = "no run of this workspace used it (hosts up, the console, or another computer)"


def account_json(account: Account) -> dict[str, Any]:
    """One machine. ``difference`` is what the ledger had beyond the cloud's word before this audit (below zero: what it
    lacked, and has now); ``beyond_cloud`` what runs claim beyond it, which is not in the ledger."""
    return {
        "project": account.project,
        "zone": account.zone,
        "name": account.name,
        "id": account.instance_id,
        "target": account.target,
        "there": account.there,
        "emulated": account.emulated,
        "agrees": account.agrees,
        "cloud": _sum(account.cloud_s, account.cloud_usd),
        "ledger": _sum(account.ledger_s, account.ledger_usd),
        "difference": _sum(account.difference_s, account.difference_usd),
        "beyond_cloud": _sum(account.beyond_s, account.beyond_usd),
        "times": [_time_json(time) for time in account.times],
        "before_the_ledger": [
            {"started": iso(one.started), "stopped": iso(one.stopped), "user": one.user or None}
            for one in account.earlier
        ],
    }


def _time_json(time: Time) -> dict[str, Any]:
    return {
        "started": iso(time.started),
        "stopped": iso(time.stopped),
        **_sum(time.seconds, time.usd),
        "used_by_runs_s": round(time.used_s, 3),
        "for_nobody": time.for_nobody,
        "upper_bound": time.bound,
        "user": time.user or None,
    }


def _sum(seconds: float, usd: float) -> dict[str, float]:
    return {"seconds": round(seconds, 3), "usd": round(usd, 6)}


def print_accounts(accounts: Sequence[Account], console: Console) -> None:
    """Each machine: whether the books agree, and what does not fit."""
    for account in accounts:
        if account.times or account.earlier:
            for line, style in _lines(account):
                console.print(clean(line, 400), style=style, markup=False, highlight=False)


def _lines(account: Account) -> Iterator[tuple[str, str]]:
    gone = "" if account.there else ", which is gone" if account.there is False else ", which could not be asked after"
    name = f"{account.name} in {account.zone} ({account.instance_id}){gone}"
    cloud = f"the cloud had it on for {_much(account.cloud_s, account.cloud_usd)}"
    if abs(account.difference_s) < SLIGHT_S:
        yield f"ledger of {name}: {cloud}, and so has the ledger", "dim"
    else:
        had = f"the ledger had {_much(account.ledger_s, account.ledger_usd)}"
        less = account.difference_s < 0
        much = _much(abs(account.difference_s), abs(account.difference_usd))
        yield f"ledger of {name}: {cloud}; {had}: {much} too {'little' if less else 'much'}, corrected", "yellow"
    if account.beyond_s >= SLIGHT_S:
        beyond = _much(account.beyond_s, account.beyond_usd)
        yield f"  runs claim {beyond} beyond that, which the ledger leaves out: the cloud's word is the bill", "yellow"
    for time in account.times:
        if time.bound:
            yield f"  {_when(time)}: when it went off is not known; this is the latest that it can have been", "yellow"
        if time.for_nobody:
            yield (
                f"  {_when(time)}, {_much(time.seconds, time.usd)}: no run of this workspace used it{_by(time.user)}",
                "yellow",
            )
    if account.earlier:
        count = len(account.earlier)
        since = iso(account.earlier[0].started)
        yield (
            f"  on {count} time{'s' if count > 1 else ''} since {since} before the ledger knew it: not in the ledger",
            "dim",
        )


def _when(time: Time) -> str:
    return f"{iso(time.started)} to {iso(time.stopped) or 'now'}"


def _by(user: str) -> str:
    return f", started by {user}" if user else ""


def _much(seconds: float, usd: float) -> str:
    return f"{duration(seconds)} (${usd:.4f})"


# ------------------------------------------------------------------------------------------- Google's billing lines
def comparison_json(found: Comparison) -> dict[str, Any]:
    """``difference_usd`` is the ledger's beyond Google's; a side that has no line of a thing is null."""
    return {
        "since": iso(found.since),
        "until": iso(found.until),
        "tolerance_pct": found.tolerance_pct,
        "agrees": not found.differing,
        "differing": [_name(row) for row in found.differing],
        "ledger_usd": round(found.ours_usd, 6),
        "google_usd": round(found.google_usd, 6),
        "difference_usd": round(found.ours_usd - found.google_usd, 6),
        "credits_usd": round(found.credits_usd, 6),
        "things": [_row_json(row) for row in found.things],
        "days": [{"day": row.day, **_row_json(row)} for row in found.rows],
        "not_compared": {
            "google_lines": found.other_lines,
            "google_usd": round(found.other_usd, 6),
            "ledger_usd": round(found.elsewhere_usd, 6),
        },
    }


def _row_json(row: Row) -> dict[str, Any]:
    kind, name, number = row.thing
    return {
        "kind": kind,
        "name": name,
        "id": number or None,
        "ledger_usd": _rounded(row.ours_usd),
        "google_usd": _rounded(row.google_usd),
        "difference_usd": round(row.difference_usd, 6),
        "credits_usd": round(row.credits_usd, 6),
        "only": _only(row) or None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def print_comparison(found: Comparison, console: Console) -> None:
    """Each thing and day, their sums, what was left out, and whether the books agree."""
    since, until = (f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M}" for moment in (found.since, found.until))
    console.print(text(f"From {since} to {until} UTC, which is what the file covers. Days are UTC's."))
    made = table("thing", "day", right=("ledger", "Google", "ledger - Google", ""))
    for row in found.rows:
        made.add_row(*_cells(_name(row), row.day, row))
    for row in found.things:
        made.add_row(*(text(cell, "bold") for cell in _cells(_name(row), "all days", row)))
    console.print(made)
    console.print()
    for line, style in _remarks(found):
        console.print(text(line, style))


def _cells(name: str, day: str, row: Row) -> tuple[str, ...]:
    only = _only(row)
    return (
        name,
        day,
        usd(row.ours_usd),
        usd(row.google_usd),
        usd(round(row.difference_usd, 4) or 0.0),
        f"only {only}" if only else "",
    )


def _name(row: Row) -> str:
    kind, name, number = row.thing
    what = {"machine": "", "network": "network of ", "address": "address of "}.get(kind, f"{kind} ")
    return clean(f"{what}{name}" + (f" ({number})" if number else ""), 200)


def _only(row: Row) -> str:
    if row.google_usd is None:
        return "ledger"
    return "Google" if row.ours_usd is None else ""


def _remarks(found: Comparison) -> Iterator[tuple[str, str]]:
    if found.credits_usd:
        yield f"Credits and discounts take {usd(-found.credits_usd)} off Google's sum; the ledger has list prices.", ""
    if found.other_lines:
        lines = f"{found.other_lines} line{'s' if found.other_lines > 1 else ''}"
        yield f"Not compared: {lines} of the file, {usd(found.other_usd)}, of what is not this workspace's.", "dim"
    if found.elsewhere_usd:
        yield f"Not compared: {usd(found.elsewhere_usd)} of the ledger, of machines in no cloud.", "dim"
    both = f"The ledger has {usd(found.ours_usd)}, Google {usd(found.google_usd)}"
    if not found.differing:
        yield f"{both}: they agree within {found.tolerance_pct:g} % (or ${SLIGHT_USD:.2f}) of each thing.", ""
        return
    yield f"{both}. They differ by more than {found.tolerance_pct:g} % (and ${SLIGHT_USD:.2f}) on:", "yellow"
    for row in found.differing:
        yield f"  {_name(row)}: {_why(row)}", "yellow"


def _why(row: Row) -> str:
    """The likely cause, and what to type."""
    if row.google_usd is None:
        return "only the ledger has it. Google's lines come up to a day late: export again, or fcctl hosts audit"
    if row.ours_usd is None:
        of_machine = row.thing[0] in ("network", "address")
        return "only Google has it" + (", the ledger has no such lines" if of_machine else ": fcctl hosts audit")
    more = "more" if row.difference_usd > 0 else "less"
    return f"the ledger has {usd(abs(row.difference_usd))} {more}: fcctl hosts audit, and fcctl cost prices --refresh"
