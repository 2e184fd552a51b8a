"""Disks, snapshots and static addresses: billed by the month whether or not a machine runs. Pure. Between two records
of one resource it was as the first one says; before the first, as that one says since it was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel

from orchestrator.base.models import KEPT
from orchestrator.money.calendar import days
from orchestrator.money.ledger import STANDING, Line, Sure
from orchestrator.money.prices.table import HOURS_PER_MONTH

Kind = Literal["disk", "snapshot", "address"]
Key = tuple[str, str, str, str]
#: A thing that was seen to be there is taken to be there for so long before the ledger says that it is an estimate.
FRESH_S = 3600.0
ASK = "fcctl hosts audit asks the cloud"


class ResourceRecord(BaseModel):
    """What the cloud said of one thing at one moment. Times are epoch seconds."""

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


# ------------------------------------------------------------------------------------------------------------- lives
@dataclass(frozen=True)
class ResourceHistory:
    """The words on one thing from its making to its end, the oldest first."""

    words: tuple[ResourceRecord, ...]

    @property
    def last(self) -> ResourceRecord:
        return self.words[-1]

    @property
    def created(self) -> float | None:
        told = [w.created for w in self.words if w.created is not None and not w.by_machine]
        guessed = [w.created for w in self.words if w.created is not None]
        return told[0] if told else guessed[0] if guessed else None

    @property
    def gone(self) -> float | None:
        return self.last.gone


def lives(words: Iterable[ResourceRecord]) -> list[ResourceHistory]:
    """One for each thing; one that was deleted and made again under its name is two."""
    by_key: dict[Key, list[ResourceRecord]] = {}
    for word in words:
        by_key.setdefault(word.key, []).append(word)
    return [life for key in sorted(by_key) for life in _split(by_key[key])]


def _split(words: Sequence[ResourceRecord]) -> Iterator[ResourceHistory]:
    own: list[ResourceRecord] = []
    for word in words:
        if own and _is_another(own[-1], word):
            if own[-1].gone is None:  # the one before was gone when this one was made
                own.append(own[-1].model_copy(update={"gone": word.created, "missed": True}))
            yield ResourceHistory(tuple(own))
            own = []
        own.append(word)
    if own:
        yield ResourceHistory(tuple(own))


def _is_another(last: ResourceRecord, word: ResourceRecord) -> bool:
    made_later = word.created is not None and word.created > last.seen
    if last.gone is None:
        return made_later and not word.by_machine
    # A better word on its end is one on the same thing.
    return made_later or (word.gone is None and word.seen > last.gone)


def without_repetitions(words: Iterable[ResourceRecord]) -> list[ResourceRecord]:
    """The words without those between two that say the same: it was so all the time."""
    by_key: dict[Key, list[ResourceRecord]] = {}
    for word in words:
        by_key.setdefault(word.key, []).append(word)
    found: list[ResourceRecord] = []
    for own in by_key.values():
        ahead = any(max(word.created or 0.0, word.gone or 0.0) > word.seen for word in own)
        if ahead or any(earlier.seen > later.seen for earlier, later in pairwise(own)):
            found += own  # a clock put them out of order: what they say depends on all of them
        else:
            found += [w for life in lives(own) for at, w in enumerate(life.words) if not _is_between(life.words, at)]
    return found


def _is_between(words: Sequence[ResourceRecord], at: int) -> bool:
    if at < 2 or at == len(words) - 1:  # until the second one it is not known when it was made
        return False
    before, word, after = words[at - 1 : at + 2]
    then = {"seen": word.seen}
    return before.model_copy(update=then) == word == after.model_copy(update=then)


def news(known: ResourceHistory | None, said: ResourceRecord) -> ResourceRecord | None:
    """What is to be written down of ``said``: nothing if it is known and fresh; what is known better, kept."""
    if known is None or known.gone is not None or _is_another(known.last, said):
        return said
    last = known.last
    if said.by_machine and not last.by_machine:
        # The disk's own entry was seen once: its type and its age are the cloud's word.
        price = said.usd_per_month if last.type == said.type else _scaled(last, said.gb)
        said = said.model_copy(update={"type": last.type, "created": last.created, "by_machine": False,
                                       "usd_per_month": price})  # fmt: skip
    facts = ("gb", "type", "in_use", "machine_id", "auto_delete", "by_machine", "usd_per_month", "target")
    changed = any(getattr(said, name) != getattr(last, name) for name in facts)
    return said if changed or said.seen - last.seen >= FRESH_S else None


def _scaled(last: ResourceRecord, gb: int) -> float | None:
    return last.usd_per_month / last.gb * gb if last.usd_per_month is not None and last.gb else None


def ended(life: ResourceHistory, at: float, now: float, *, missed: bool = False) -> ResourceRecord:
    """The word on the end of a thing."""
    return life.last.model_copy(update={"gone": at, "seen": max(now, life.last.seen), "missed": missed})


# ------------------------------------------------------------------------------------------------------------- lines
@dataclass(frozen=True)
class _Part:
    """Some time of a thing, at one price."""

    start: float
    end: float
    word: ResourceRecord
    sure: Sure
    why: str = ""


def standing_lines(words: Iterable[ResourceRecord], now: float, zone: tzinfo) -> list[Line]:
    """Returns the cost of all resources until now, one line per resource and day of ``zone``. What was seen while this
    computer's clock was ahead counts as seen now."""
    found = []
    seen = [word if word.seen <= now else word.model_copy(update={"seen": now}) for word in words]
    for life in lives(sorted(seen, key=lambda word: word.seen)):
        for part in _joined(_parts(life, now)):
            for start, end in days(part.start, part.end, zone):
                usd = (part.word.usd_per_month or 0.0) / HOURS_PER_MONTH * (end - start) / 3600
                found.append(
                    Line(start, end - start, usd, part.word.kind, part.word.target or STANDING, what=part.word.text,
                         emulated=part.word.emulated, sure=part.sure, why=part.why)
                )  # fmt: skip
    return found


def _joined(parts: Iterable[_Part]) -> Iterator[_Part]:
    """Neighbours that differ in nothing but their time, as one."""
    last: _Part | None = None
    for part in parts:
        if last is not None and _alike(last) == _alike(part):
            last = replace(last, end=part.end)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


def _alike(part: _Part) -> tuple[object, ...]:
    return part.word.text, part.word.target, part.word.usd_per_month, part.sure, part.why


def _parts(life: ResourceHistory, now: float) -> Iterator[_Part]:
    created = life.created
    there = [word for word in life.words if word.gone is None] or [life.words[0]]
    words = [_as_known_later(word, there[number + 1 :]) for number, word in enumerate(there)]
    starts = [created if created is not None else words[0].seen, *(word.seen for word in words[1:])]
    last_seen = words[-1].seen
    for number, (word, start) in enumerate(zip(words, starts, strict=True)):
        end = words[number + 1].seen if number + 1 < len(words) else min(last_seen, life.gone or last_seen)
        yield from _part(start, end, word, *_of_word(word, known_from=created is not None or number > 0))
    yield from _tail(life, words[-1], max(starts[-1], min(last_seen, life.gone or last_seen)), now)


def _as_known_later(word: ResourceRecord, later: Sequence[ResourceRecord]) -> ResourceRecord:
    """The word with the type and the price that the cloud, or the user, told afterwards of the same thing."""
    same = [one for one in later if one.gb == word.gb]
    if word.by_machine and (told := next((one for one in same if not one.by_machine), None)) is not None:
        word = word.model_copy(update={"type": told.type, "usd_per_month": told.usd_per_month, "by_machine": False})
    if word.usd_per_month is None:
        priced = next((one for one in same if one.usd_per_month is not None and one.type == word.type), None)
        word = word if priced is None else word.model_copy(update={"usd_per_month": priced.usd_per_month})
    return word


def _tail(life: ResourceHistory, word: ResourceRecord, since: float, now: float) -> Iterator[_Part]:
    """From when it was seen last."""
    sure, why = _of_word(word)
    if life.gone is not None and life.last.missed:
        missing = f"gone when it was looked for on {_day(life.gone)}, and since when is not known"
        yield from _part(since, life.gone, word, _weaker("upper_bound", sure), why or missing)
    elif life.gone is not None:
        yield from _part(since, life.gone, word, sure, why)
    elif now - since <= FRESH_S:
        yield from _part(since, now, word, sure, why)
    else:
        there = f"last seen on {_day(word.seen)}, and taken to be there still; {ASK}"
        yield from _part(since, now, word, _weaker("estimated", sure), why or there)


def _of_word(word: ResourceRecord, *, known_from: bool = True) -> tuple[Sure, str]:
    if word.usd_per_month is None:
        return "unpriced", f"no price is known for {word.type or 'it'} in {word.place}; say it: {_key(word)}"
    if word.by_machine:
        return "estimated", "only its machine was seen: its type is the target's, its age the machine's; " + ASK
    return ("known", "") if known_from else ("estimated", "when it was made is not known: from when it was first seen")


def _key(word: ResourceRecord) -> str:
    """Where the user says the price."""
    of = {"disk": "disk_usd_per_gib_month", "snapshot": "snapshot_usd_per_gib_month", "address": "address_usd_per_hour"}
    return f"{of[word.kind]} in [targets.{word.target or 'NAME'}]"


def _weaker(sure: Sure, other: Sure) -> Sure:
    return "unpriced" if other == "unpriced" else sure


def _part(start: float, end: float, word: ResourceRecord, sure: Sure, why: str) -> Iterator[_Part]:
    if end > start:
        yield _Part(start, end, word, sure, why)


def _day(epoch: float) -> str:
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%d}"
