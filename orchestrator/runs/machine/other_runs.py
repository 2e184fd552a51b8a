"""The other runs of this workspace on one machine of a cloud: who uses it, who is just letting it go, who was left."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from orchestrator.base.errors import FcctlError
from orchestrator.machines.targets import CloudTarget, Target
from orchestrator.money.caps import as_gcp
from orchestrator.runs.lifecycle import Stage, State, fold
from orchestrator.runs.services import Services

_TARGET: TypeAdapter[Target] = TypeAdapter(Target)


@dataclass(frozen=True)
class OtherRun:
    run_id: str
    state: State
    #: Whether an fcctl follows it.
    live: bool

    @property
    def uses_it(self) -> bool:
        return self.live and self.state.machine == "held" and self.state.stage < Stage.COLLECTED

    @property
    def lets_go(self) -> bool:
        return self.live and self.state.machine == "leaving"

    @property
    def left_behind(self) -> bool:
        """Nobody follows it, and its machine may be on for it, or has what it left on its disk."""
        waits = self.state.machine == "released" and Stage.SUBMITTING <= self.state.stage <= Stage.ENDED
        return not self.live and (waits or self.state.machine in ("held", "leaving"))


def neighbours(services: Services, target: CloudTarget, own: str | None) -> list[OtherRun]:
    """The active runs on the machine that ``target`` means, but for ``own``."""
    store, found = services.store, []
    for run_id in store.active():
        if run_id == own or not _is_on(target, store.plan_of(run_id)):
            continue
        try:
            claimed = store.claim(run_id)
        except FcctlError:
            continue  # it is complete by now
        if claimed is not None:
            claimed.release()
        found.append(OtherRun(run_id, fold(store.journal_of(run_id)), live=claimed is None))
    return found


def _is_on(target: CloudTarget, plan: dict[str, object] | None) -> bool:
    raw = (plan or {}).get("target")
    if not isinstance(raw, dict) or raw.get("kind") in ("local", "ssh"):
        return False
    try:
        machine = as_gcp(_TARGET.validate_python(raw))
    except ValidationError:  # another version's
        return False
    return machine is not None and (machine.project, machine.instance) == (target.project, target.instance)
