"""Results home: every byte checked, nothing written outside the run's own folder, resumable at any byte."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fcctl_remote import wire
from orchestrator.base.errors import HostFault
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.host_api import HostSession
from orchestrator.results.store_api import Intake
from orchestrator.runs.services import Services

_ATTEMPTS = 3


@dataclass(frozen=True)
class Collection:
    files: int
    bytes: int
    omitted: list[wire.Omitted]


def everything(_path: str) -> bool:
    return True


def collect(
    link: ReconnectingHost,
    run_id: str,
    intake: Intake,
    services: Services,
    wanted_path: Callable[[str], bool] = everything,
) -> Collection:
    """Fetches the missing files of a finished run that ``wanted_path`` accepts, and verifies all of them. Raises
    HostFault if a file's content differs from its checksum three times."""
    listing = link.call(lambda s: s.files(run_id))
    listing.files = [entry for entry in listing.files if wanted_path(entry.path)]
    listing.omitted = [entry for entry in listing.omitted if wanted_path(entry.path)]
    wanted, refused = _screen(listing, intake)
    services.observer.phase("collect", f"{len(wanted)} files, {amount(sum(f.size for f in wanted))}")
    bad: list[wire.FileEntry] = list(wanted)
    for _ in range(_ATTEMPTS):
        link.call(functools.partial(_fetch, run_id=run_id, entries=tuple(bad), intake=intake))
        bad = [entry for entry in bad if not intake.verified(entry)]
        if not bad:
            intake.flush()  # the journal is about to say so, and the host may forget the run from then on
            return Collection(len(wanted), sum(f.size for f in wanted), [*listing.omitted, *refused])
        for entry in bad:
            intake.discard(entry.path)
    raise HostFault(
        f"{len(bad)} of the run's files arrive damaged, {bad[0].path!r} first",
        cause="their content has not the checksum the host announced: it changes there, or the host lies",
        hint=f"look at the run on the host, then: fcctl pull-results {run_id}",
    )


def amount(size: int) -> str:
    """Bytes as people read them: ``512 bytes``, ``7.8 kB``, ``62.9 MB``; a kB is 1000 of them."""
    named = ((unit, scale) for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if size >= scale)
    unit, scale = next(named, ("bytes", 1))
    return f"{size} bytes" if scale == 1 else f"{size / scale:.1f} {unit}"


def _screen(listing: wire.FileList, intake: Intake) -> tuple[list[wire.FileEntry], list[wire.Omitted]]:
    """What is fetched, and what is left out. Small files come first: where not all fits, the largest stay there."""
    reasons = {e.path: intake.accepts(e.path, e.size) for e in sorted(listing.files, key=lambda entry: entry.size)}
    wanted = [entry for entry in listing.files if reasons[entry.path] is None]
    refused = [wire.Omitted(path, reason) for path, reason in reasons.items() if reason is not None]
    return wanted, refused


def _fetch(session: HostSession, run_id: str, entries: Sequence[wire.FileEntry], intake: Intake) -> None:
    parts = []
    for entry in entries:
        have = intake.size(entry.path)
        if have > entry.size:
            intake.discard(entry.path)
            have = 0
        if have < entry.size or entry.size == 0:
            parts.append(wire.FilePart(entry.path, have, entry.size - have))
    for part, data in session.fetch(run_id, parts):
        intake.write(part.path, part.offset, data)
