"""The user's book of spending, as a workspace of a test sees it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestrator.base.clock import Clock, SystemClock
from orchestrator.money.book import SpendingBook
from orchestrator.money.reservations import Owner, Reservation, Scope
from tests.support.stores import NOVEMBER


def book_in(
    folder: Path, *, project: str = "ws", results: Path | None = None, machines: Iterable[tuple[str, str]] = (),
    clock: Clock | None = None, firing: str | None = None,
) -> SpendingBook:  # fmt: skip
    """Args: folder: of the state; ``results`` is a folder in it unless it is given."""
    scope = Scope(project, str(results if results is not None else folder / "results"), frozenset(machines))
    return SpendingBook(folder, clock or SystemClock(), scope, firing)


def reservation(name: str, usd: float = 1.0, owner: Owner = "run", **changes: object) -> Reservation:
    """Of the project ``ws``, for a machine that is simply there."""
    values = {
        "reservation_id": name, "owner": owner, "owner_id": name, "project": "ws", "results": "", "target": "box",
        "at": NOVEMBER, "usd": usd,
    }  # fmt: skip
    return Reservation.model_validate({**values, **changes})
