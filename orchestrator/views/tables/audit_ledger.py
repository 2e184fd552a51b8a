"""The ledger against the cloud's own books, as ``fcctl hosts audit`` and ``fcctl cost reconcile`` show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from orchestrator.base.clock import iso
from orchestrator.base.fields import pick, rounded
from orchestrator.base.sanitize import clean
from orchestrator.money.billing.compare import SLIGHT_USD, Comparison, Row
from orchestrator.money.ledger import SLIGHT_S
from orchestrator.money.reconcile import Account, Time
from orchestrator.views.figures import duration, plural, usd
from orchestrator.views.table import Table, show


def account_json(account: Account) -> dict[str, Any]:
    """One machine. ``difference`` is what the ledger had beyond the cloud's records before this audit (below zero: what
    it lacked, and has now); ``beyond_cloud`` what runs claim beyond them, which is not in the ledger."""
    return {
        **pick(account, "project zone name target there emulated agrees"),
        "id": account.instance_id,
        "cloud": _sum(account.cloud_s, account.cloud_usd),
        "ledger": _sum(account.ledger_s, account.ledger_usd),
        "difference": _sum(account.difference_s, account.difference_usd),
        "beyond_cloud": _sum(account.beyond_s, account.beyond_usd),
        "times": [
            {**_span(time), **_sum(time.seconds, time.usd), "used_by_runs_s": round(time.used_s, 3),
             "for_nobody": time.for_nobody, "upper_bound": time.bound}
            for time in account.times
        ],
        "before_the_ledger": [_span(time) for time in account.earlier],
    }  # fmt: skip


def _span(time: Any) -> dict[str, Any]:
    return {"started": iso(time.started), "stopped": iso(time.stopped), "user": time.user or None}


def _sum(seconds: float, usd: float) -> dict[str, float]:
    return {"seconds": round(seconds, 3), "usd": round(usd, 6)}


def print_accounts(accounts: Sequence[Account], console: Console) -> None:
    """Each machine: whether the books agree, and what does not fit."""
    for account in accounts:
        if account.times or account.earlier:
            show(console, *((clean(line, 400), style) for line, style in _lines(account)))


def _lines(account: Account) -> Iterator[tuple[str, str]]:
    gone = "" if account.there else ", which is gone" if account.there is False else ", which could not be asked after"
    name = f"{account.name} in {account.zone} ({account.instance_id}){gone}"
    cloud = f"the cloud had it on for {_much(account.cloud_s, account.cloud_usd)}"
    if abs(account.difference_s) < SLIGHT_S:
        yield f"ledger of {name}: {cloud}, and so has the ledger", "dim"
    else:
        had = f"the ledger had {_much(account.ledger_s, account.ledger_usd)}"
        much = _much(abs(account.difference_s), abs(account.difference_usd))
        less = "little" if account.difference_s < 0 else "much"
        yield f"ledger of {name}: {cloud}; {had}: {much} too {less}, corrected", "yellow"
    if account.beyond_s >= SLIGHT_S:
        beyond = _much(account.beyond_s, account.beyond_usd)
        yield f"  runs claim {beyond} beyond that, which the ledger leaves out: the cloud's word is the bill", "yellow"
    for time in account.times:
        yield from _time(time)
    if account.earlier:
        times, since = plural(len(account.earlier), "time"), iso(account.earlier[0].started)
        yield f"  on {times} since {since} before the ledger knew it: not in the ledger", "dim"


def _time(time: Time) -> Iterator[tuple[str, str]]:
    when = f"{iso(time.started)} to {iso(time.stopped) or 'now'}"
    if time.bound:
        yield f"  {when}: when it went off is not known; this is the latest that it can have been", "yellow"
    if time.for_nobody:
        by = f", started by {time.user}" if time.user else ""
        yield f"  {when}, {_much(time.seconds, time.usd)}: no run of this workspace used it{by}", "yellow"


def _much(seconds: float, usd: float) -> str:
    return f"{duration(seconds)} (${usd:.4f})"


# ------------------------------------------------------------------------------------------- Google's billing lines
def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """``difference_usd`` is the ledger's beyond Google's; a side that has no line of a thing is null."""
    return {
        "since": iso(comparison.since),
        "until": iso(comparison.until),
        "tolerance_pct": comparison.tolerance_pct,
        "agrees": not comparison.differing,
        "differing": [_name(row) for row in comparison.differing],
        "ledger_usd": round(comparison.ours_usd, 6),
        "google_usd": round(comparison.google_usd, 6),
        "difference_usd": round(comparison.ours_usd - comparison.google_usd, 6),
        "credits_usd": round(comparison.credits_usd, 6),
        "things": [_row_json(row) for row in comparison.things],
        "days": [{"day": row.day, **_row_json(row)} for row in comparison.rows],
        "not_compared": {
            "google_lines": comparison.other_lines,
            "google_usd": round(comparison.other_usd, 6),
            "ledger_usd": round(comparison.elsewhere_usd, 6),
        },
    }


def _row_json(row: Row) -> dict[str, Any]:
    kind, name, number = row.thing
    return {
        "kind": kind,
        "name": name,
        "id": number or None,
        "ledger_usd": rounded(row.ours_usd),
        "google_usd": rounded(row.google_usd),
        "difference_usd": round(row.difference_usd, 6),
        "credits_usd": round(row.credits_usd, 6),
        "only": _only(row) or None,
    }


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Each thing and day, their sums, what was left out, and whether the books agree."""
    since, until = (
        f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M}" for moment in (comparison.since, comparison.until)
    )
    table = Table("thing", "day", right=("ledger", "Google", "ledger - Google", ""))
    for row in comparison.rows:
        table.add_row(*_cells(row, row.day))
    for row in comparison.things:
        table.add_row(*(Text(cell, "bold") for cell in _cells(row, "all days")))
    covered = f"From {since} to {until} UTC, which is what the file covers. Days are UTC's."
    show(console, covered, table, "", *_remarks(comparison))


def _cells(row: Row, day: str) -> tuple[str, ...]:
    only = f"only {_only(row)}" if _only(row) else ""
    return _name(row), day, usd(row.ours_usd), usd(row.google_usd), usd(round(row.difference_usd, 4) or 0.0), only


def _name(row: Row) -> str:
    kind, name, number = row.thing
    what = {"machine": "", "network": "network of ", "address": "address of "}.get(kind, f"{kind} ")
    return clean(f"{what}{name}" + (f" ({number})" if number else ""), 200)


def _only(row: Row) -> str:
    return "ledger" if row.google_usd is None else "Google" if row.ours_usd is None else ""


def _remarks(c: Comparison) -> Iterator[tuple[str, str]]:
    if c.credits_usd:
        yield f"Credits and discounts take {usd(-c.credits_usd)} off Google's sum; the ledger has list prices.", ""
    if c.other_lines:
        lines = f"{plural(c.other_lines, 'line')} of the file, {usd(c.other_usd)}"
        yield f"Not compared: {lines}, of what is not this workspace's.", "dim"
    if c.elsewhere_usd:
        yield f"Not compared: {usd(c.elsewhere_usd)} of the ledger, of machines in no cloud.", "dim"
    both = f"The ledger has {usd(c.ours_usd)}, Google {usd(c.google_usd)}"
    if not c.differing:
        yield f"{both}: they agree within {c.tolerance_pct:g} % (or ${SLIGHT_USD:.2f}) of each thing.", ""
        return
    yield f"{both}. They differ by more than {c.tolerance_pct:g} % (and ${SLIGHT_USD:.2f}) on:", "yellow"
    yield from ((f"  {_name(row)}: {_cause(row)}", "yellow") for row in c.differing)


def _cause(row: Row) -> str:
    """The likely cause, and what to type."""
    if row.google_usd is None:
        return "only the ledger has it. Google's lines come up to a day late: export again, or fcctl hosts audit"
    if row.ours_usd is None:
        of_machine = row.thing[0] in ("network", "address")
        return "only Google has it" + (", the ledger has no such lines" if of_machine else ": fcctl hosts audit")
    more = "more" if row.difference_usd > 0 else "less"
    return f"the ledger has {usd(abs(row.difference_usd))} {more}: fcctl hosts audit, and fcctl cost prices --refresh"
