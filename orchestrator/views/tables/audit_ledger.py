"""The ledger against the cloud's own books, as ``fcctl hosts audit`` shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.base.clock import iso
from orchestrator.base.sanitize import clean
from orchestrator.money.ledger import SLIGHT_S
from orchestrator.money.reconcile import Account, Time
from orchestrator.views.live.run import duration

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
            for text, style in _lines(account):
                console.print(clean(text, 400), style=style, markup=False, highlight=False)


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
