"""What ``fcctl cost rebuild`` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from orchestrator.base.sanitize import clean
from orchestrator.runs.cost.rebuild import Rebuilt, UnknownKind
from orchestrator.views.tables.cells import print_trimmed, text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_HEADS: dict[UnknownKind, str] = {
    "damaged_runs": "runs whose run.json is damaged",
    "damaged_sessions": "sessions that cannot be read",
    "reservations_without_record": "reservations whose record is gone",
    "machines_never_seen_off": "machines that were seen on and never seen off",
    "runs_without_price": "runs on machines without a price",
}


def rebuilt_json(found: Rebuilt, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "runs": [{"run_id": one.run_id, "usd": one.cost.usd} for one in found.runs],
        "usd": round(found.usd, 6),
        "machine_records": len(found.power),
        "resource_records": len(found.resources),
        "reservations": [
            {"reservation_id": one.reservation_id, "owner": one.owner, "target": one.target, "usd": one.usd}
            for one in found.reservations
        ],
        "damaged_lines": found.damaged,
        "set_aside": found.aside,
        "unknown": {
            kind: [{"name": one.name, "why": one.why} for one in found.unknown if one.kind == kind]
            for kind in get_args(UnknownKind)
        },
    }


def print_rebuilt(found: Rebuilt, console: Console, *, dry_run: bool) -> None:
    for piece in _lines(found, dry_run=dry_run):
        print_trimmed(console, piece, console.width)


def _lines(found: Rebuilt, *, dry_run: bool) -> Iterator[RenderableType]:
    if not (found.runs or found.power or found.resources or found.reservations):
        yield text("the book of spending has all that this workspace knows")
    else:
        yield from _added(found, dry_run=dry_run)
    if found.damaged:
        yield text(f"lines that cannot be read: {found.damaged}")
        where = "they would be set aside" if found.aside is None else f"they are in {found.aside}"
        yield _unbroken(f"  {where}")
    for kind, head in _HEADS.items():
        unknown = [one for one in found.unknown if one.kind == kind]
        if unknown:
            yield text(f"not known: {head}", "yellow")
        for thing in unknown:
            yield text(f"  {clean(thing.name, 90)}: {clean(thing.why, 200)}")


def _added(found: Rebuilt, *, dry_run: bool) -> Iterator[RenderableType]:
    yield text("the book of spending would get" if dry_run else "the book of spending got", "bold")
    yield text(f"  runs                           {len(found.runs)}, ${found.usd:.2f}")
    yield text(f"  records of machines            {len(found.power)}")
    yield text(f"  of disks, snapshots, addresses {len(found.resources)}")
    yield text(f"  reservations                   {len(found.reservations)}")
    for one in found.reservations:
        yield text(f"    ${one.usd:.2f} for {clean(one.owner_id, 80)}")


def _unbroken(words: str) -> RenderableType:
    made = text(words)
    made.no_wrap = True
    return made
