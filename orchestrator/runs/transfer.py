"""What a run exchanges with its host: source there; events and results back; old runs deleted there."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.base.errors import FcctlError, HostFault, LinkLost, plural
from orchestrator.base.observer import Observer
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.interfaces import Bundle, Bundles, HostSession, Transfer
from orchestrator.runs.services import Services
from orchestrator.runs.source import Source

if TYPE_CHECKING:
    from orchestrator.results.store.intake import FolderIntake


#: A tree that a job damaged in place is noticed when the snapshot is verified, and its files are sent again.
_ATTEMPTS = 3
_MISMATCH_HINT = (
    "if a program writes to the file while fcctl sends it, repeat the command, or add the file to .gitignore"
)
#: Of a bundle, in one call: half of what one may carry, so that a slow link shows signs of life.
_PIECE_BYTES = wire.MAX_BLOB_BYTES // 2


def send_source(link: ReconnectingHost, plan: wire.RunPlan, source: Source, observer: Observer) -> None:
    """Sends ``source`` into the run's snapshot on the host. Raises HostFault if the snapshot still differs after three
    tries."""
    observer.phase("sync", f"{plural(len(source.entries), 'file')}")
    for path in source.skipped:
        observer.note(f"not sent: {path}")
    for attempt in range(_ATTEMPTS):
        try:
            link.call(lambda s: _send_once(s, plan, source, observer))
            return
        except HostFault as e:
            if e.fault == "tree_mismatch":
                e.hint = _MISMATCH_HINT
            if e.fault != "tree_mismatch" or attempt == _ATTEMPTS - 1:
                raise
            observer.note("files changed during the transfer or on the host; sending them again")


def _send_once(session: HostSession, plan: wire.RunPlan, source: Source, observer: Observer) -> None:
    diff = session.tree_diff(plan.workspace, source.entries)
    if diff.changed:
        sizes = {entry.path: entry.size for entry in source.entries}
        for text in (source.large[path] for path in diff.changed if path in source.large):
            observer.note(text)
        uploaded = _uploaded(observer, sum(sizes.get(path, 0) for path in diff.changed))
        sent = session.send(plan.workspace, diff.root, source.root, diff.changed, uploaded)
        observer.phase("sync", f"{sent.files} of {plural(len(source.entries), 'file')} sent{_by(sent)}")
    session.snapshot(plan.workspace, plan.run_id, source.entries, source.tree_sha256)


def _uploaded(observer: Observer, total: int) -> Callable[[int], None]:
    """Tells ``observer`` of the bytes sent, from one second on and at most once in a second."""
    began, done, told = time.monotonic(), 0, 0.0

    def sent(count: int) -> None:
        nonlocal done, told
        done += count
        seconds = time.monotonic() - began
        if seconds - told >= 1.0:
            told = seconds
            observer.upload(done, total, seconds)

    return sent


def _by(sent: Transfer) -> str:
    if sent.how == "calls" and sent.rsync_error:
        return f" without rsync, because rsync failed: {sent.rsync_error.splitlines()[0]}"
    return " by rsync" if sent.how == "rsync" else ""


def send_bundles(
    link: ReconnectingHost, plan: wire.RunPlan, bundles: Callable[[], Bundles], observer: Observer
) -> None:
    """Sends the libraries of the plan's searches that the host lacks. Raises NotFoundError if nobody has them,
    HostFault if they arrive damaged."""
    for sha256 in sorted({step.tune.bundle for step in plan.steps if step.tune is not None}):
        if _has_bundle(link, sha256):
            continue
        bundle = bundles().find(sha256)
        observer.phase("sync", f"libraries of the search, {bundle.size / 1e6:.1f} MB")
        _send_bundle(link, bundle)


def _has_bundle(link: ReconnectingHost, sha256: str) -> bool:
    return link.call(lambda session: session.bundle(sha256, 0, 0, b"")).ready


def _send_bundle(link: ReconnectingHost, bundle: Bundle) -> None:
    content = bundle.path.read_bytes()
    for attempt in range(_ATTEMPTS):
        try:
            link.call(lambda s: _send_pieces(s, bundle, content))
            return
        except HostFault as e:
            if e.fault != "bundle_mismatch" or attempt == _ATTEMPTS - 1:
                raise


def _send_pieces(session: HostSession, bundle: Bundle, content: bytes) -> None:
    """From where the host has it; a link that was lost on the way does not begin anew."""
    state = session.bundle(bundle.sha256, bundle.size, 0, b"")
    while not state.ready:
        begin = state.received
        state = session.bundle(bundle.sha256, bundle.size, begin, content[begin : begin + _PIECE_BYTES])
        if not state.ready and state.received <= begin:
            raise HostFault(
                "cannot send the libraries of the search to the host", hint="check the target: fcctl doctor"
            )


POLL_S = 5.0


def follow(
    link: ReconnectingHost, run_id: str, services: Services, also: Callable[[wire.WatchReply], None] | None = None
) -> wire.RunSummary | None:
    """Reports events and progress until the run has ended, each event once; ``also`` is called with each reply. Returns
    the last summary; None if the host does not know the run."""
    request = wire.WatchRequest(run_id=run_id, log_step="@current", tail=True, wait_s=POLL_S)
    while True:
        try:
            reply, tail = link.call(lambda s: s.watch(request))
        except HostFault as e:
            if e.fault == "not_found":
                return None
            raise
        for event in reply.events:
            services.observer.event(event)
        request.events_offset = reply.events_offset
        if reply.log_step is not None:  # else the same part is sent again and again
            request.log_offset, request.log_offset_step = reply.log_offset + len(tail), reply.log_step
        services.observer.progress(reply, tail)
        if also is not None:
            also(reply)
        if reply.summary.status in wire.RUN_ENDINGS:
            return reply.summary


@dataclass(frozen=True)
class Collection:
    files: int
    bytes: int
    omitted: list[wire.Omitted]


def collect(
    link: ReconnectingHost,
    run_id: str,
    intake: FolderIntake,
    services: Services,
    wanted_path: Callable[[str], bool] = lambda _: True,
) -> Collection:
    """Fetches the missing files of a finished run that ``wanted_path`` accepts, and verifies all of them. Raises
    HostFault if a file's content differs from its checksum three times."""
    listing = link.call(lambda s: s.files(run_id))
    listing.files = [entry for entry in listing.files if wanted_path(entry.path)]
    listing.omitted = [entry for entry in listing.omitted if wanted_path(entry.path)]
    wanted, refused = _screen(listing, intake)
    services.observer.phase("collect", f"{plural(len(wanted), 'file')}, {amount(sum(f.size for f in wanted))}")
    bad: list[wire.FileEntry] = list(wanted)
    for _ in range(_ATTEMPTS):
        _fetch_over(link, run_id, bad, intake)
        bad = [entry for entry in bad if not intake.verified(entry)]
        if not bad:
            intake.flush()  # the journal is about to say so, and the host may forget the run from then on
            return Collection(len(wanted), sum(f.size for f in wanted), [*listing.omitted, *refused])
        for entry in bad:
            intake.discard(entry.path)
    raise HostFault(
        f"{plural(len(bad), 'file')} of the run arrived damaged; the first is {bad[0].path!r}",
        cause="their content does not match the checksum from the host: the files are changing on the host, or the"
        " host sent wrong data",
        hint=f"check the run's files on the host, then: fcctl pull-results {run_id}",
    )


def amount(size: int) -> str:
    """Bytes as people read them: ``512 bytes``, ``7.8 kB``, ``62.9 MB``; a kB is 1000 of them."""
    named = ((unit, scale) for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if size >= scale)
    unit, scale = next(named, ("bytes", 1))
    return f"{size} bytes" if scale == 1 else f"{size / scale:.1f} {unit}"


def _screen(listing: wire.FileList, intake: FolderIntake) -> tuple[list[wire.FileEntry], list[wire.Omitted]]:
    """What is fetched, and what is left out. Small files come first: where not all fits, the largest stay there."""
    reasons = {e.path: intake.accepts(e.path, e.size) for e in sorted(listing.files, key=lambda entry: entry.size)}
    wanted = [entry for entry in listing.files if reasons[entry.path] is None]
    refused = [wire.Omitted(path, reason) for path, reason in reasons.items() if reason is not None]
    return wanted, refused


def _fetch_over(link: ReconnectingHost, run_id: str, entries: Sequence[wire.FileEntry], intake: FolderIntake) -> None:
    """Fetches over any number of connections. Raises LinkLost if no byte arrived for ``reconnect_s``."""
    while True:
        before = intake.written
        try:
            return link.call(functools.partial(_fetch, run_id=run_id, entries=tuple(entries), intake=intake))
        except LinkLost:
            if intake.written == before:
                raise


def _fetch(session: HostSession, run_id: str, entries: Sequence[wire.FileEntry], intake: FolderIntake) -> None:
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


#: Finished runs that stay on a host, newest first.
KEPT_ON_HOST = 10
#: With less free space, none stays.
LOW_BYTES = 2 * 1024**3


def make_room(services: Services, link: ReconnectingHost) -> None:
    """Before a run is sent: on a host whose disk is nearly full, not even the newest of the old runs stay."""
    if link.call(lambda s: s.hello.free_bytes) < LOW_BYTES and (count := delete_old_runs(services, link, 0)):
        runs = plural(count, "old run")
        services.observer.note(f"the disk of {link.target.name} is nearly full: fcctl deleted {runs} there")


def delete_old_runs(services: Services, link: ReconnectingHost, keep: int = KEPT_ON_HOST) -> int:
    """Deletes old runs on the host that are complete here, but the newest ``keep``; returns how many. A failure is only
    noted."""
    count = 0
    try:
        summaries = link.session().status(None)
        ended = sorted((r.run_id for r in summaries if r.status in wire.RUN_ENDINGS), reverse=True)
        for run_id in ended[keep:]:
            if _is_all_here(services, run_id):
                count += _forgotten(link.session(), run_id)
    except FcctlError as e:
        services.observer.note(f"could not delete old runs on {link.target.name}: {e.message}")
    return count


def _is_all_here(services: Services, run_id: str) -> bool:
    """Whether the host has nothing of the run that is not here too."""
    try:
        return services.store.is_complete(run_id) and not services.store.get(run_id).omitted
    except FcctlError:  # its record is damaged, or `fcctl results prune` deletes it just now
        return False


def _forgotten(session: HostSession, run_id: str) -> bool:
    """Deletes a run there; False: the host needs it yet, as when a later run works in its folder."""
    try:
        session.forget(run_id)
    except HostFault as e:
        if e.fault != "conflict":
            raise
        return False
    return True
