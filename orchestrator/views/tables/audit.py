"""The ledger against the cloud's records, and rebuilt from the workspace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

from rich.console import Console
from rich.text import Text

from orchestrator.base.clock import iso
from orchestrator.base.errors import plural
from orchestrator.base.json_text import pick, rounded
from orchestrator.base.sanitize import clean
from orchestrator.money.billing.compare import SLIGHT_USD, Comparison, Row
from orchestrator.money.ledger import SLIGHT_S
from orchestrator.money.reconcile import Account, Time
from orchestrator.runs.cost.rebuild import Rebuilt, UnknownKind
from orchestrator.views.figures import duration, usd
from orchestrator.views.table import Piece, Table, show, unbroken


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
    presence = "" if account.there else ", deleted" if account.there is False else ", whose state is unknown"
    name = f"{account.name} in {account.zone} ({account.instance_id}){presence}"
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
            f"  runs claim {beyond} more; the ledger does not count them, because the cloud's records take precedence",
            "yellow",
        )
    for time in account.times:
        yield from _time(time)
    if account.earlier:
        times, since = plural(len(account.earlier), "time"), iso(account.earlier[0].started)
        yield f"  on {times} since {since} before the ledger began: not in the ledger", "dim"


def _time(time: Time) -> Iterator[tuple[str, str]]:
    when = f"{iso(time.started)} to {iso(time.stopped) or 'now'}"
    if time.bound:
        yield f"  {when}: stop time unknown; this is the latest possible", "yellow"
    if time.for_nobody:
        by = f", started by {time.user}" if time.user else ""
        yield f"  {when}, {_much(time.seconds, time.usd)}: no run of this workspace used the machine{by}", "yellow"


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
    covered = f"From {since} to {until} UTC, the period that the file covers. Days are in UTC."
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
        yield f"Credits and discounts take {usd(-c.credits_usd)} off Google's sum; the ledger uses list prices.", ""
    if c.other_lines:
        lines = f"{plural(c.other_lines, 'line')} of the file, {usd(c.other_usd)}"
        yield f"Not compared: {lines}, not of this workspace.", "dim"
    if c.elsewhere_usd:
        yield f"Not compared: {usd(c.elsewhere_usd)} of the ledger, for machines outside the cloud.", "dim"
    both = f"The ledger has {usd(c.ours_usd)}, Google {usd(c.google_usd)}"
    if not c.differing:
        yield f"{both}: they agree within {c.tolerance_pct:g} % (or ${SLIGHT_USD:.2f}) of each thing.", ""
        return
    yield f"{both}. They differ by more than {c.tolerance_pct:g} % (and ${SLIGHT_USD:.2f}) on:", "yellow"
    yield from ((f"  {_name(row)}: {_cause(row)}", "yellow") for row in c.differing)


def _cause(row: Row) -> str:
    """The likely cause, and what to type."""
    if row.google_usd is None:
        return "only the ledger has this cost. Google's lines may be a day late: export again, or fcctl hosts audit"
    if row.ours_usd is None:
        of_machine = row.thing[0] in ("network", "address")
        return "only Google has this cost" + (", the ledger has no such lines" if of_machine else ": fcctl hosts audit")
    more = "more" if row.difference_usd > 0 else "less"
    return f"the ledger has {usd(abs(row.difference_usd))} {more}: fcctl hosts audit, and fcctl cost prices --refresh"


_HEADS: dict[UnknownKind, str] = {
    "damaged_runs": "runs whose run.json is damaged",
    "damaged_sessions": "sessions that cannot be read",
    "reservations_without_record": "reservations without a record",
    "machines_never_seen_off": "machines with a start but no stop",
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
        yield "nothing to add to the book of spending"
    else:
        yield "the book of spending would get" if dry_run else "the book of spending got", "bold"
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
