"""Source to the host: only the files whose content differs, then a verified snapshot of the run's own."""

from __future__ import annotations

from fcctl_remote import wire
from orchestrator.errors import HostFault
from orchestrator.ports import HostSession, Observer, Source
from orchestrator.workflows.link import Link

#: A tree that a job damaged in place is noticed when the snapshot is verified, and its files are sent again.
_ATTEMPTS = 3


def send_source(link: Link, plan: wire.RunPlan, source: Source, observer: Observer) -> None:
    """Bring ``source`` into the run's snapshot on the host.

    A link lost on the way starts over with a new comparison, so that only what is still missing is sent.

    Raises:
        HostFault: the snapshot still differs from the source after the files were sent again.
    """
    observer.phase("sync", f"{len(source.entries)} files")
    for path in source.skipped:
        observer.note(f"not sent: {path}")
    for attempt in range(_ATTEMPTS):
        try:
            link.call(lambda s: _send_once(s, plan, source, observer))
            return
        except HostFault as e:
            if e.fault != "tree_mismatch" or attempt == _ATTEMPTS - 1:
                raise
            observer.note("files of the tree on the host were changed there; sending them again")


def _send_once(session: HostSession, plan: wire.RunPlan, source: Source, observer: Observer) -> None:
    diff = session.tree_diff(plan.workspace, source.entries)
    if diff.changed:
        sent = session.send(plan.workspace, diff.root, source.root, diff.changed)
        observer.phase("sync", f"{sent.files} of {len(source.entries)} files sent by {sent.how}")
    session.snapshot(plan.workspace, plan.run_id, source.entries, source.tree_sha256)
