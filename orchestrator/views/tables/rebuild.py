"""What ``fcctl cost rebuild`` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from rich.console import Console

from orchestrator.base.fields import pick
from orchestrator.base.sanitize import clean
from orchestrator.runs.cost.rebuild import Rebuilt, UnknownKind
from orchestrator.views.table import Piece, show, unbroken

_HEADS: dict[UnknownKind, str] = {
    "damaged_runs": "runs whose run.json is damaged",
    "damaged_sessions": "sessions that cannot be read",
    "reservations_without_record": "reservations whose record is gone",
    "machines_never_seen_off": "machines that were seen on and never seen off",
    "runs_without_price": "runs on machines without a price",
}


def rebuilt_json(rebuilt: Rebuilt, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "runs": [{"run_id": one.run_id, "usd": one.cost.usd} for one in rebuilt.runs],
        "usd": round(rebuilt.usd, 6),
        "machine_records": len(rebuilt.power),
        "resource_records": len(rebuilt.resources),
        "reservations": [pick(one, "reservation_id owner target usd") for one in rebuilt.reservations],
        "damaged_lines": rebuilt.damaged,
        "set_aside": rebuilt.aside,
        "unknown": {
            kind: [pick(one, "name why") for one in rebuilt.unknown if one.kind == kind]
            for kind in get_args(UnknownKind)
        },
    }


def print_rebuilt(rebuilt: Rebuilt, console: Console, *, dry_run: bool) -> None:
    show(console, *_lines(rebuilt, dry_run=dry_run))


def _lines(rebuilt: Rebuilt, *, dry_run: bool) -> Iterator[Piece]:
    if not (rebuilt.runs or rebuilt.power or rebuilt.resources or rebuilt.reservations):
        yield "the book of spending has all that this workspace knows"
    else:
        yield "the book of spending would get" if dry_run else "the book of spending got", "bold"
        yield f"  runs                           {len(rebuilt.runs)}, ${rebuilt.usd:.2f}"
        yield f"  records of machines            {len(rebuilt.power)}"
        yield f"  of disks, snapshots, addresses {len(rebuilt.resources)}"
        yield f"  reservations                   {len(rebuilt.reservations)}"
        yield from (f"    ${one.usd:.2f} for {clean(one.owner_id, 80)}" for one in rebuilt.reservations)
    if rebuilt.damaged:
        yield f"lines that cannot be read: {rebuilt.damaged}"
        where = "they would be set aside" if rebuilt.aside is None else f"they are in {rebuilt.aside}"
        yield unbroken(f"  {where}")
    for kind, head in _HEADS.items():
        unknown = [one for one in rebuilt.unknown if one.kind == kind]
        if unknown:
            yield f"not known: {head}", "yellow"
        yield from (f"  {clean(thing.name, 90)}: {clean(thing.why, 200)}" for thing in unknown)
