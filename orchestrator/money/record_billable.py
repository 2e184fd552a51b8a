"""Write down what stands in a cloud and is billed by the month, for the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.base.clock import Clock
from orchestrator.base.errors import FcctlError
from orchestrator.machines import sandbox_target as sandbox
from orchestrator.machines.cloud import BillableResource, Machine, Operation
from orchestrator.machines.cloud_api import Cloud
from orchestrator.machines.power_history import deleted_at, disk_deleted_at
from orchestrator.machines.provision.endpoint import on_loopback
from orchestrator.machines.targets import GcpTarget
from orchestrator.money import billable as holdings
from orchestrator.money.billable import Key, ResourceHistory, ResourceRecord
from orchestrator.money.book import SpendingBook
from orchestrator.money.prices.storage import is_ours, of_leftover, target_of
from orchestrator.money.prices.table import PriceTable


def remember(
    book: SpendingBook, clock: Clock, cloud: Cloud, targets: Sequence[GcpTarget], machines: Sequence[Machine],
    found: Sequence[BillableResource], prices: PriceTable, *, workspace: str, whole: bool,
) -> None:  # fmt: skip
    """Records the disks, snapshots and addresses that the cloud lists for a project. ``found`` has everybody's;
    ``whole``: the list is complete, so that what is missing is gone."""
    names = frozenset(target.instance for target in targets)
    now, emulated = clock.now(), all(is_emulated(target) for target in targets)
    known = ResourceRecorder(book, clock)
    known.see(
        of_leftover(one, target_of(one, targets), machines, prices, now, emulated=emulated)
        for one in found
        if is_ours(one, names, workspace)
    )
    if whole:
        known.miss(targets[0].project, ((o.project, o.kind, o.place, o.name) for o in found), cloud)


def is_emulated(target: GcpTarget) -> bool:
    """Whether it is the sandbox's machine. Another emulator's is reckoned like a real one: it stands for it."""
    return target.project == sandbox.PROJECT and on_loopback(target.api_endpoint)


class ResourceRecorder:
    """The things that are known, and what is new of them."""

    def __init__(self, book: SpendingBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._known: dict[Key, ResourceHistory] | None = None

    def see(self, found: Iterable[ResourceRecord]) -> None:
        """Things as they are now."""
        for said in found:
            word = holdings.news(self._lives().get(said.key), said)
            if word is not None:
                self._note(word)

    def hear(self, operations: Sequence[Operation]) -> None:
        """What was done to machines: with one that was deleted went the disks that were to go with it."""
        for life in self.standing():
            last = life.last
            if last.auto_delete and last.machine_id:
                at = deleted_at(operations, last.machine_id)
                if at is not None and at >= (life.created or 0.0):
                    self._note(holdings.ended(life, at, self._clock.now()))

    def miss(self, project: str, there: Iterable[Key], cloud: Cloud) -> None:
        """The project's own list is whole, and has ``there``: whatever else was known of it is gone."""
        present = set(there)
        for life in self.standing():
            last = life.last
            if last.project != project or last.key in present:
                continue
            at = self._deleted(life, cloud)
            now = self._clock.now()
            self._note(holdings.ended(life, now if at is None else at, now, missed=at is None))

    def end(self, thing: BillableResource, at: float) -> None:
        """It was deleted at ``at``, by this fcctl."""
        life = self._lives().get((thing.project, thing.kind, thing.place, thing.name))
        if life is not None and life.gone is None:
            self._note(holdings.ended(life, at, at))

    def standing(self) -> list[ResourceHistory]:
        """Things that are not known to be gone."""
        return [life for life in self._lives().values() if life.gone is None]

    def _deleted(self, life: ResourceHistory, cloud: Cloud) -> float | None:
        """When it was, as far as the cloud's list of what was done says."""
        last = life.last
        if last.kind != "disk":
            return None
        try:
            history = cloud.operations(last.place, last.name)
        except FcctlError:
            return None
        return disk_deleted_at(history, last.name, last.seen)

    def _note(self, word: ResourceRecord) -> None:
        self._book.note_holding(word)
        before = self._lives().get(word.key)
        words = [*before.words, word] if before is not None else [word]
        self._lives()[word.key] = holdings.lives(words)[-1]

    def _lives(self) -> dict[Key, ResourceHistory]:
        """The newest life of each thing."""
        if self._known is None:
            self._known = {life.last.key: life for life in holdings.lives(self._book.holdings())}
        return self._known
