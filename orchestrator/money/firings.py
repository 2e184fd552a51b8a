"""What each firing of a schedule counts in its month: its budget, until its cost is known. The book has both, so that
deleting files gives no money back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, tzinfo

from orchestrator.money.book import Change, FiringCost, SpendingBook, State
from orchestrator.money.ledger import IDLE, UsageRecord, latest, ledger
from orchestrator.money.reservations import Reservation, Scope

#: The environment variable by which the commands of a firing know that they are its.
FIRING = "FCCTL_FIRING"


def firing_id(scope: Scope, schedule: str, due: float) -> str:
    """The name of one firing: two checkouts of a project fire for themselves, and share the month."""
    return f"{_key(scope, schedule)}@{due!r} {scope.results}"


def start(book: SpendingBook, schedule: str, due: float, usd: float, *, cap: float | None, zone: tzinfo) -> str | None:
    """Counts a firing with ``usd``; returns the reason if the month's cap does not allow it. Months are those of
    ``zone``."""
    firing = firing_id(book.scope, schedule, due)
    with book.changing() as change:
        spent = spent_in_month(change.state, book.scope, schedule, due, zone, but=firing)
        if cap is not None and spent + usd > cap + 1e-9:
            return f"${spent:.2f} of this month's ${cap:.2f} is spent, and one firing may cost ${usd:.2f}"
        change.add("firing", FiringCost(firing=firing, schedule=_key(book.scope, schedule), due=due, usd=usd))
    return None


def end(book: SpendingBook, schedule: str, due: float, usd: float | None) -> None:
    """Ends a firing that cost ``usd``. None: 0 if nothing was reserved for it, else the cost of its booked runs, else
    its budget."""
    firing = firing_id(book.scope, schedule, due)
    if firing not in book.state().firings():
        return
    with book.changing() as change:
        known = change.state.firings().get(firing)
        if known is None:
            return
        if usd is None and all(line.data.get("firing") != firing for line in change.state.lines("reserve")):
            usd = 0.0
        change.add("firing", known.model_copy(update={"usd": known.usd if usd is None else usd, "ended": True}))


def spent_in_month(
    state: State, scope: Scope, schedule: str, moment: float, zone: tzinfo, *, but: str | None = None
) -> float:
    """Returns dollars of the firings due in the month of ``moment``, without the firing ``but``."""
    month, key, total = _month(moment, zone), _key(scope, schedule), 0.0
    costs = ((usage.firing, usage.cost) for _, usage in state.runs().values())
    booked = _by_firing((name, cost.usd + cost.egress_usd) for name, cost in costs)
    reserved = _by_firing((one.firing, one.usd) for one in state.open().values())
    for one in state.firings().values():
        if one.schedule != key or one.firing == but or _month(one.due, zone) != month:
            continue
        cost = booked.get(one.firing, 0.0) + one.left_on_usd
        if one.firing in reserved:  # a run is not over, or its machine is not known to be off
            total += max(one.usd, cost + reserved[one.firing])
        else:
            total += cost if one.firing in booked else one.usd
    return total


def count_left_on(change: Change, kept: Reservation) -> None:
    """Adds the cost of a machine that a firing left on, after its runs. Call it before ``kept`` is released."""
    known = change.state.firings().get(kept.firing or "")
    if known is not None:
        usd = known.left_on_usd + _left_on_usd(change.state, kept)
        change.add("firing", known.model_copy(update={"left_on_usd": usd}))


def _left_on_usd(state: State, kept: Reservation) -> float:
    """The idle cost of the start, by the cloud's times; without them, all that was reserved."""
    of_start = [
        one for _, one in state.of("power", UsageRecord)
        if one.instance_id == kept.instance_id and kept.started is not None and abs(one.started - kept.started) <= 1.0
    ]  # fmt: skip
    runs = [one for _, one in state.runs().values() if one.machine and one.machine.instance_id == kept.instance_id]
    lines = [line for line in ledger(runs, of_start) if line.on_since is not None]
    if all(one.stopped is None or one.usd_per_hour is None for one in latest(of_start)):
        return max(0.0, kept.usd - sum(line.usd for line in lines if line.activity != IDLE))
    return sum(line.usd for line in lines if line.activity == IDLE)


def import_record(book: SpendingBook, schedule: str, read: Callable[[], list[FiringCost]]) -> None:
    """Counts the firings of a record from before the book, which ``read`` returns; once per schedule."""
    name = {"results": f"{book.scope.results}#{_key(book.scope, schedule)}"}
    if any(line.data == name for line in book.state().lines("imported")):
        return
    with book.changing() as change:
        known = change.state.firings()
        for one in read():
            if one.firing not in known:
                change.add("firing", one)
        change.add("imported", name)


def cost_of(scope: Scope, schedule: str, due: float, usd: float, *, ended: bool) -> FiringCost:
    return FiringCost(
        firing=firing_id(scope, schedule, due), schedule=_key(scope, schedule), due=due, usd=usd, ended=ended
    )


def _by_firing(usd: Iterable[tuple[str | None, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for firing, cost in usd:
        if firing:
            sums[firing] = sums.get(firing, 0.0) + cost
    return sums


def _key(scope: Scope, schedule: str) -> str:
    return f"{scope.project}/{schedule}"


def _month(moment: float, zone: tzinfo) -> tuple[int, int]:
    when = datetime.fromtimestamp(moment, zone)
    return when.year, when.month
