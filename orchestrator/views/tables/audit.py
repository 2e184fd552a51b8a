"""The ledger against the cloud's records, and rebuilt from the workspace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from rich.console import Console

from orchestrator.base.clock import iso, utc_minute
from orchestrator.base.errors import plural
from orchestrator.base.json_text import pick
from orchestrator.base.sanitize import clean
from orchestrator.machines.power_history import PowerInterval
from orchestrator.money.audit import Account, Time
from orchestrator.money.ledger import SLIGHT_S, UsageRecord
from orchestrator.runs.cost.rebuild import Rebuilt, UnknownKind
from orchestrator.views.figures import duration
from orchestrator.views.table import Piece, show, unbroken


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
