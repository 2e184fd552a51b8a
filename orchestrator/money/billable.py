"""Disks, snapshots and static addresses: billed by the month whether or not a machine runs. Pure. Between two records
of one resource it was as the first one says; before the first, as that one says since it was made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from itertools import groupby, pairwise

from pydantic import BaseModel

from orchestrator.base.models import KEPT
from orchestrator.machines.cloud import (
    MANAGED_LABEL,
    SNAPSHOT_LABEL,
    WORKSPACE_LABEL,
    BillableResource,
    Kind,
    Machine,
    region_of,
)
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.ledger import STANDING, Line, Sure
from orchestrator.money.prices.machine import monthly, monthly_usd
from orchestrator.money.prices.table import HOURS_PER_MONTH, PriceTable
from orchestrator.money.totals import days

Key = tuple[str, str, str, str]
#: A resource that was seen is taken to be there for so long before the ledger calls it an estimate, seconds.
FRESH_S = 3600.0
ASK = "ask the cloud: fcctl hosts audit"


class ResourceRecord(BaseModel):
    """What the cloud said of one resource at one moment. Times are epoch seconds."""

    model_config = KEPT

    project: str
    kind: Kind
    #: A disk's zone, an address's region or ``global``, the first place a snapshot is stored in.
    place: str
    name: str
    #: The target whose machine has it, or that it is called after; empty: the project's.
    target: str = ""
    gb: int = 0
    type: str = ""
    #: Whether a machine has it, and which.
    in_use: bool = True
    machine_id: str = ""
    #: Whether it goes when that machine is deleted.
    auto_delete: bool = False
    created: float | None = None
    seen: float
    #: When it was deleted; with ``missed`` when it was first found to be missing, which is the latest it can have been.
    gone: float | None = None
    missed: bool = False
    #: Only its machine was seen, which names and measures its disks: the type is what the target says, and the disk is
    #: taken to be as old as the machine.
    by_machine: bool = False
    #: None: no price is known.
    usd_per_month: float | None = None
    #: Nobody pays: it is the sandbox's.
    emulated: bool = False

    @property
    def key(self) -> Key:
        return self.project, self.kind, self.place, self.name

    @property
    def text(self) -> str:
        """``disk vm (100 GiB pd-balanced) in us-west1-c``."""
        size = f" ({f'{self.gb} GiB {self.type}'.strip()})" if self.gb else ""
        return f"{self.kind} {self.name}{size} in {self.place}"


# --------------------------------------------------------------------------------------------------- what was seen
def is_ours(resource: BillableResource, names: frozenset[str], workspace: str | None = None) -> bool:
    """Whether a resource is fcctl's or of one of the machines ``names``; with ``workspace``, without those of other
    workspaces."""
    called_after = any(resource.name == name or resource.name.startswith(f"{name}-") for name in names)
    if called_after or resource.source in names or names.intersection(resource.users):
        return True
    whose = resource.labels.get(WORKSPACE_LABEL)
    return MANAGED_LABEL in resource.labels and (workspace is None or whose in (None, workspace))


def target_of(resource: BillableResource, targets: Iterable[CloudTarget]) -> CloudTarget | None:
    """The target whose machine uses the resource, or whose name it has."""

    def means(target: CloudTarget) -> bool:
        name = target.instance
        return name in (*resource.users, resource.name, resource.source) or resource.name.startswith(f"{name}-")

    return next((target for target in targets if means(target)), None)


def of_resource(
    resource: BillableResource, target: CloudTarget | None, machines: Iterable[Machine], table: PriceTable, now: float,
    *, emulated: bool,
) -> ResourceRecord:  # fmt: skip
    """The record of a resource from its own entry."""
    user = next((m for m in machines if m.name in resource.users and m.zone == resource.place), None)
    attached = next((d for d in user.disks if d.name == resource.name), None) if user is not None else None
    return ResourceRecord(
        project=resource.project, kind=resource.kind, place=resource.place, name=resource.name,
        target=target.name if target is not None else "", gb=resource.gb, type=resource.type,
        in_use=bool(resource.users), machine_id=user.id if user is not None else "",
        auto_delete=attached is not None and attached.auto_delete, created=resource.created, seen=now,
        usd_per_month=monthly_usd(resource, table, target), emulated=emulated,
    )  # fmt: skip


def of_machine(
    machine: Machine, target: CloudTarget, table: PriceTable, now: float, *, emulated: bool
) -> list[ResourceRecord]:
    """What a machine says of its disks: their names and sizes, not their types."""
    region = region_of(machine.zone)
    return [
        ResourceRecord(
            project=machine.project, kind="disk", place=machine.zone, name=disk.name, target=target.name, gb=disk.gb,
            type=target.disk_type, in_use=True, machine_id=machine.id, auto_delete=disk.auto_delete,
            created=machine.created, seen=now, by_machine=True,
            usd_per_month=monthly("disk", target.disk_type, disk.gb, region, True, table, target),
            emulated=emulated,
        )
        for disk in machine.disks
        if disk.name and disk.gb
    ]  # fmt: skip


@dataclass(frozen=True)
class Orphan:
    """An unused resource, and its dollars per month; None without a price."""

    thing: BillableResource
    usd_per_month: float | None


def orphans(resources: Iterable[BillableResource], names: Iterable[str]) -> list[BillableResource]:
    """What nothing uses, of what fcctl made or what is called after one of the machines ``names``."""
    known = frozenset(names)
    return [one for one in resources if not one.users and is_ours(one, known)]


def made_by_rebuild(resource: BillableResource) -> bool:
    """Whether it is a snapshot that was made because a zone had no stock."""
    return resource.kind == "snapshot" and SNAPSHOT_LABEL in resource.labels


def older_copies(machines: Iterable[Machine]) -> dict[tuple[str, str], str]:
    """Maps (zone, name) of each stopped machine to the zone of a copy that was on later: a rebuild made that one of its
    disk."""
    newest: dict[str, Machine] = {}
    copies = list(machines)
    for machine in copies:
        known = newest.get(machine.name)
        if known is None or (machine.started or 0.0) > (known.started or 0.0):
            newest[machine.name] = machine
    return {
        (one.zone, one.name): newest[one.name].zone
        for one in copies
        if not one.billed and newest[one.name] is not one
    }  # fmt: skip


def delete_machine_command(machine: Machine) -> str:
    """What ends the costs of a machine that is off; fcctl itself deletes no disk."""
    return (
        f"gcloud compute instances delete {machine.name} --zone {machine.zone} --project {machine.project}"
        " --delete-disks=all"
    )


def delete_command(resource: BillableResource) -> str:
    """What gets rid of it; fcctl itself deletes no disk."""
    if made_by_rebuild(resource):
        return "fcctl hosts prune"
    place = {"disk": f"--zone {resource.place}", "address": f"--region {resource.place}", "snapshot": ""}
    if resource.kind == "address" and resource.place == "global":
        place["address"] = "--global"
    noun = {"disk": "disks", "address": "addresses", "snapshot": "snapshots"}[resource.kind]
    words = ["gcloud compute", noun, "delete", resource.name, place[resource.kind], f"--project {resource.project}"]
    return " ".join(word for word in words if word)


# --------------------------------------------------------------------------------------------------------- histories
@dataclass(frozen=True)
class ResourceHistory:
    """The records of one resource from its making to its end, the oldest first."""

    records: tuple[ResourceRecord, ...]

    @property
    def last(self) -> ResourceRecord:
        return self.records[-1]

    @property
    def created(self) -> float | None:
        times = [(one.by_machine, one.created) for one in self.records if one.created is not None]
        return min(times, key=lambda time: time[0])[1] if times else None  # the resource's own entry counts first

    @property
    def gone(self) -> float | None:
        return self.last.gone


def histories(records: Iterable[ResourceRecord]) -> list[ResourceHistory]:
    """One for each resource; one that was deleted and made again under its name is two."""
    by_key: dict[Key, list[list[ResourceRecord]]] = {}
    for record in records:
        own = by_key.setdefault(record.key, [])
        if own and not _is_another(own[-1][-1], record):
            own[-1].append(record)
            continue
        if own and own[-1][-1].gone is None:  # it was gone when the next one was made
            own[-1].append(own[-1][-1].model_copy(update={"gone": record.created, "missed": True}))
        own.append([record])
    return [ResourceHistory(tuple(one)) for key in sorted(by_key) for one in by_key[key]]


def _is_another(last: ResourceRecord, record: ResourceRecord) -> bool:
    made_later = record.created is not None and record.created > last.seen
    if last.gone is None:
        return made_later and not record.by_machine
    # A better record of its end is one of the same resource.
    return made_later or (record.gone is None and record.seen > last.gone)


def without_repetitions(records: Iterable[ResourceRecord]) -> list[ResourceRecord]:
    """The records without those between two equal ones."""
    by_key: dict[Key, list[ResourceRecord]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(record)
    distinct: list[ResourceRecord] = []
    for own in by_key.values():
        ahead = any(max(one.created or 0.0, one.gone or 0.0) > one.seen for one in own)
        if ahead or any(earlier.seen > later.seen for earlier, later in pairwise(own)):
            distinct += own  # a clock put them out of order: all of them count
        else:
            distinct += [one for history in histories(own) for one in _without_repetitions(history.records)]
    return distinct


def _without_repetitions(records: Sequence[ResourceRecord]) -> Iterator[ResourceRecord]:
    for at, record in enumerate(records):
        # Until the second one it is not known when it was made.
        neighbours = (records[at - 1], records[at + 1]) if 2 <= at < len(records) - 1 else ()
        if not neighbours or any(one.model_copy(update={"seen": record.seen}) != record for one in neighbours):
            yield record


def news(known: ResourceHistory | None, seen: ResourceRecord) -> ResourceRecord | None:
    """The record to be written of ``seen``: None if it is known and fresh; with what is known better."""
    if known is None or known.gone is not None or _is_another(known.last, seen):
        return seen
    last = known.last
    if seen.by_machine and not last.by_machine:  # the type and the age of the disk's own entry count
        price = seen.usd_per_month
        if last.type != seen.type:
            price = last.usd_per_month / last.gb * seen.gb if last.usd_per_month is not None and last.gb else None
        update = {"type": last.type, "created": last.created, "by_machine": False, "usd_per_month": price}
        seen = seen.model_copy(update=update)
    facts = ("gb", "type", "in_use", "machine_id", "auto_delete", "by_machine", "usd_per_month", "target")
    changed = any(getattr(seen, name) != getattr(last, name) for name in facts)
    return seen if changed or seen.seen - last.seen >= FRESH_S else None


def ended(history: ResourceHistory, at: float, now: float, *, missed: bool = False) -> ResourceRecord:
    """The record of a resource's end."""
    return history.last.model_copy(update={"gone": at, "seen": max(now, history.last.seen), "missed": missed})


def with_static_address(records: Iterable[ResourceRecord]) -> list[tuple[str, float, float]]:
    """(target, since, until): when its machine had a static address, which is billed by itself."""
    times: list[tuple[str, float, float]] = []
    for history in histories(one for one in records if one.kind == "address"):
        since = history.created
        for one, later in pairwise([*history.records, None]):
            if one is not None and one.in_use and one.gone is None:
                times.append((one.target, since or one.seen, math.inf if later is None else later.seen))
            since = later.seen if later is not None else None
    return times


# -------------------------------------------------------------------------------------------------------------- lines
@dataclass(frozen=True)
class _Period:
    """Some time of a resource at one price."""

    start: float
    end: float
    record: ResourceRecord
    sure: Sure
    why: str = ""

    @property
    def facts(self) -> tuple[object, ...]:
        return self.record.text, self.record.target, self.record.usd_per_month, self.sure, self.why


def standing_lines(records: Iterable[ResourceRecord], now: float, zone: tzinfo) -> list[Line]:
    """Returns the cost of all resources until now, one line per resource and day of ``zone``. What was seen while this
    computer's clock was ahead counts as seen now."""
    lines = []
    seen = [one if one.seen <= now else one.model_copy(update={"seen": now}) for one in records]
    counted: dict[Key, float] = {}  # until when
    for history in histories(sorted(seen, key=lambda one: one.seen)):
        # One that a list once lacked is there again, and as old as before.
        since = counted.get(history.last.key, -math.inf)
        counted[history.last.key] = math.inf if history.gone is None else history.gone
        periods = [replace(one, start=max(one.start, since)) for one in _periods(history, now)]
        periods = [one for one in periods if one.end > one.start]
        for _, equal in groupby(periods, key=lambda one: one.facts):
            first, *others = equal
            record, until = first.record, others[-1].end if others else first.end
            for start, end in days(first.start, until, zone):
                usd = (record.usd_per_month or 0.0) / HOURS_PER_MONTH * (end - start) / 3600
                lines.append(
                    Line(start, end - start, usd, record.kind, record.target or STANDING, what=record.text,
                         emulated=record.emulated, sure=first.sure, why=first.why)
                )  # fmt: skip
    return lines


def _periods(history: ResourceHistory, now: float) -> Iterator[_Period]:
    created, gone = history.created, history.gone
    there = [one for one in history.records if one.gone is None] or [history.records[0]]
    last_seen = min(there[-1].seen, gone or there[-1].seen)
    start = created if created is not None else there[0].seen
    for number, seen in enumerate(there):
        end = there[number + 1].seen if number + 1 < len(there) else last_seen
        record = _as_known_later(seen, there[number + 1 :])
        yield _Period(start, end, record, *_certainty(record, known_from=created is not None or number > 0))
        start = max(start, end)
    yield _since_last_seen(history, record, start, now)


def _as_known_later(record: ResourceRecord, later: Sequence[ResourceRecord]) -> ResourceRecord:
    """The record with the type and the price that became known later."""
    same = [one for one in later if one.gb == record.gb]
    if record.by_machine and (own := next((one for one in same if not one.by_machine), None)) is not None:
        update = {"type": own.type, "usd_per_month": own.usd_per_month, "by_machine": False}
        record = record.model_copy(update=update)
    if record.usd_per_month is None:
        prices = (one.usd_per_month for one in same if one.type == record.type)
        record = record.model_copy(update={"usd_per_month": next((usd for usd in prices if usd is not None), None)})
    return record


def _since_last_seen(history: ResourceHistory, record: ResourceRecord, since: float, now: float) -> _Period:
    sure, why = _certainty(record)
    end, weaker = now, sure
    if history.gone is not None:
        end = history.gone
        if history.last.missed:
            weaker, why = (
                "upper_bound",
                why or f"it no longer existed on {_day(end)}; the time of its deletion is unknown",
            )
    elif now - since > FRESH_S:
        weaker, why = "estimated", why or f"last seen on {_day(record.seen)}, fcctl assumes that it still exists; {ASK}"
    return _Period(since, end, record, "unpriced" if sure == "unpriced" else weaker, why)


def _certainty(record: ResourceRecord, *, known_from: bool = True) -> tuple[Sure, str]:
    if record.usd_per_month is None:
        keys = {"disk": "disk_usd_per_gib_month", "snapshot": "snapshot_usd_per_gib_month"}
        key = f"{keys.get(record.kind, 'address_usd_per_hour')} in [targets.{record.target or 'NAME'}]"
        return "unpriced", f"no price is known for {record.type or record.kind} in {record.place}; set {key}"
    if record.by_machine:
        return "estimated", "only its machine was seen; assumed: the target's type, the machine's age; " + ASK
    if known_from:
        return "known", ""
    return "estimated", "its creation time is unknown: counted from when it was first seen"


def _day(epoch: float) -> str:
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d}"
