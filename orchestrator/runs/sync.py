"""Source to the host: only the files whose content differs, then a verified snapshot of the run's own."""

from __future__ import annotations

from fcctl_remote import wire
from orchestrator.base.errors import HostFault
from orchestrator.base.observer import Observer
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.host_api import Bundle, Bundles, HostSession
from orchestrator.runs.source.api import Source

#: A tree that a job damaged in place is noticed when the snapshot is verified, and its files are sent again.
_ATTEMPTS = 3
_MISMATCH_HINT = "something writes to it while it is sent? Then run it again, or have git ignore the file"
#: Of a bundle, in one call: half of what one may carry, so that a slow link shows signs of life.
_PIECE_BYTES = wire.MAX_BLOB_BYTES // 2


def send_source(link: ReconnectingHost, plan: wire.RunPlan, source: Source, observer: Observer) -> None:
    """Sends ``source`` into the run's snapshot on the host. Raises HostFault if the snapshot still differs after three
    tries."""
    observer.phase("sync", f"{len(source.entries)} files")
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
            observer.note("files were changed while they were sent, or on the host; sending them again")


def _send_once(session: HostSession, plan: wire.RunPlan, source: Source, observer: Observer) -> None:
    diff = session.tree_diff(plan.workspace, source.entries)
    if diff.changed:
        sent = session.send(plan.workspace, diff.root, source.root, diff.changed)
        observer.phase("sync", f"{sent.files} of {len(source.entries)} files sent" + _by(sent.how))
    session.snapshot(plan.workspace, plan.run_id, source.entries, source.tree_sha256)


def _by(how: str) -> str:
    return " by rsync" if how == "rsync" else ""


def warm_up(link: ReconnectingHost, plan: wire.RunPlan) -> None:
    """If steps of ``plan`` use the machine's Python with torch: it may load that while the source is on its way."""
    asked = [text for step in plan.steps for text in (step.run, step.tune.spec if step.tune is not None else "")]
    if any(name in text for text in asked for name in ("FCCTL_PYTHON", "fcctl-host venv")):
        link.call(lambda s: s.warm(plan.env))


def send_bundles(link: ReconnectingHost, plan: wire.RunPlan, bundles: Bundles, observer: Observer) -> None:
    """Sends the libraries of the plan's searches that the host lacks. Raises NotFoundError if nobody has them,
    HostFault if they arrive damaged."""
    for sha256 in sorted({step.tune.bundle for step in plan.steps if step.tune is not None}):
        if _has_bundle(link, sha256):
            continue
        bundle = bundles.find(sha256)
        observer.phase("sync", f"libraries of the search, {bundle.size / 1e6:.1f} MB")
        _send_bundle(link, bundle)


def _has_bundle(link: ReconnectingHost, sha256: str) -> bool:
    return link.call(lambda s: s.bundle(sha256, 0, 0, b"")).ready


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
            raise HostFault("the host does not take the libraries of the search", hint="try: fcctl doctor")
