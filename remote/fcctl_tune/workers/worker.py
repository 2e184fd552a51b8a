"""``python -m fcctl_tune.workers.worker --name gpu-0 --gpu 1 ..``: one Dask worker, while its stdin is open.

The first line of stdin is the scheduler's address: its imports need not wait for that. A worker has ``--cpu N`` slots
in which trials are built, or one ``--gpu`` slot in which they are checked and timed, one at a time. It imports no
library of the kernels: what trials do happens in processes that it starts, and that end with it, however they hide.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import secrets
import shutil
import signal
import sys
import threading
from concurrent.futures import Future
from typing import Any, Dict, List, NoReturn, Optional

from fcctl_remote.base.text import one_line
from fcctl_tune.trial import process, slot
from fcctl_tune.workers import dask_settings, membership
from fcctl_tune.workers.interfaces import resource

#: A worker of another machine than the search's finds its host's facts in this variable, as JSON.
HOST = "FCCTL_TUNE_HOST"
#: Exit codes: not needed any more, for the reason in the file GOODBYE; the scheduler is not there (any more).
DISMISSED, LOST = 90, 91
#: Files beside its own folder: why it is not needed any more; that the scheduler let it in.
GOODBYE, JOINED = "goodbye", "joined"
#: How long a scheduler may take to let it in, how often it is asked whether that is all, and how long an answer may
#: take, seconds: a tunnel may end somewhere without a word.
START_S, ASK_S, ANSWER_S = 30, 0.5, 30.0


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fcctl_tune.workers.worker")
    parser.add_argument("--name", required=True)
    parser.add_argument("--host", default="", help="the machine's name in its fleet: slots are this host's alone")
    parser.add_argument("--cpu", type=int, default=0, metavar="N", help="trials built at once")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="1: checks and times trials")
    parser.add_argument("--tls", metavar="FILE", help="certificate and key of the search, if it has some")
    parser.add_argument("--folder", required=True, help="for Dask's own files")
    parser.add_argument("--trial-spec", metavar="FILE", help="a search whose `serve` is to be started at once")
    options = parser.parse_args(argv)
    process.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a step's SIGTERM is for the engine; commands must not inherit SIG_IGN
    if HOST in os.environ:  # the engine is elsewhere, and must not hear of commands that the same SIGTERM ended
        signal.signal(signal.SIGTERM, lambda *_: _leave(LOST))
    if options.trial_spec is not None:
        with open(options.trial_spec, "rb") as stream:
            slot.Slot.here(pickle.load(stream)).begin()  # noqa: S301 - of who started this process
    threading.Thread(target=_end_with_stdin, args=(address := Future[str](), options.folder), daemon=True).start()
    with dask_settings.applied():
        options.address = address.result()
        if options.tls is not None and not os.path.exists(options.tls):
            options.tls = None
        return asyncio.run(_serve(options))


def _end_with_stdin(address: Future[str], folder: str) -> None:
    """The first line is the scheduler's address; the end is that of this process and all that it started."""
    received = b""
    while chunk := os.read(0, 4096):
        received += chunk
        if b"\n" in received and not address.done():
            address.set_result(received.partition(b"\n")[0].decode())
    shutil.rmtree(os.path.dirname(folder), ignore_errors=True)  # the search's key is there
    _leave(0)


def _leave(code: int) -> NoReturn:
    """At once: nobody waits for what this process is doing."""
    process.end_descendants()
    os._exit(code)


async def _serve(options: argparse.Namespace) -> int:
    from distributed import Worker

    host_facts = os.environ.get(HOST)
    more: Dict[str, Any] = {} if host_facts is None else _of_a_fleet(json.loads(host_facts), options.tls)
    slots = {"gpu": options.gpu} if options.gpu else {"cpu": options.cpu}
    worker = Worker(
        options.address,
        name=options.name,
        host="127.0.0.1",
        nthreads=max(options.gpu, options.cpu),
        resources={resource(slot, options.host): count for slot, count in slots.items()},
        memory_limit=0,
        dashboard=False,
        local_directory=options.folder,
        security=dask_settings.security(options.tls),
        death_timeout=START_S,
        **more,
    )
    if host_facts is None:
        async with worker:
            await worker.finished()  # type: ignore[no-untyped-call]
        return 0
    try:
        await worker
    except Exception as error:  # noqa: BLE001 - no answer, the wrong key, or its name is taken by who was here before
        print("%s cannot join: %s" % (options.name, one_line(str(error))), file=sys.stderr, flush=True)
        _leave(LOST)
    await _stay(worker, options, os.path.dirname(options.folder))
    _leave(LOST)


def _of_a_fleet(host: Dict[str, Any], tls: Optional[str]) -> Dict[str, Any]:
    """The scheduler knows workers by their addresses, and those of many machines' loopbacks may be the same. Nobody
    ever connects to them."""
    place = secrets.token_bytes(2)
    address = "127.%d.%d.%d:%d" % (1 + secrets.randbelow(254), *place, 1024 + secrets.randbelow(64000))
    return {
        "contact_address": ("tls://" if tls else "tcp://") + address,
        "startup_information": {membership.FACTS: lambda _: host},
    }


async def _stay(worker: Any, options: argparse.Namespace, folder: str) -> None:
    """Until the scheduler is gone or says that we are not needed; then this process ends at once, and what it was
    doing with it: others do it by now."""
    from distributed.core import Status

    _note(folder, JOINED, options.name)
    while worker.status in (Status.running, Status.paused):
        reason = await _dismissed(worker, options.host) if options.cpu else None
        if reason is not None:
            _note(folder, GOODBYE, reason)
            _leave(DISMISSED)
        await asyncio.sleep(ASK_S)


async def _dismissed(worker: Any, host: str) -> Optional[str]:
    """What the scheduler says to this host, or to all."""
    try:
        events = await asyncio.wait_for(worker.scheduler.events(topic=membership.CONTROL), ANSWER_S)
    except asyncio.TimeoutError:
        _leave(LOST)
    except OSError:  # it will be noticed
        return None
    for _, one in events:
        if isinstance(one, dict) and one.get("to") in ("", host):
            return one_line(str(one.get("say")))
    return None


def _note(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
        stream.write(text)


if __name__ == "__main__":
    sys.exit(main())
