"""``python -m fcctl_tune.workers.worker ADDRESS --name gpu-0 --gpu 1``: one Dask worker, while its stdin is open.

It can be told late where the scheduler is, on stdin, so that its imports need not wait for that; and before it, what
to build meanwhile.

A worker has ``--cpu N`` slots in which trials are built, or one ``--gpu`` slot in which they are checked and timed, one
at a time. It runs in a process of its own, below a ``workers.supervisor``, and imports no library of the kernels:
what trials do happens in processes that it starts.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import pickle
import queue
import secrets
import signal
import sys
import threading
from typing import Any, Dict, List, Optional

from fcctl_remote.base.text import one_line
from fcctl_tune.trial import process, slot, tasks
from fcctl_tune.workers import dask_settings
from fcctl_tune.workers import membership as roster
from fcctl_tune.workers import supervisor as keeper
from fcctl_tune.workers.cluster import CONTROL
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
    parser.add_argument("address", nargs="?", help="of the scheduler; default: the first line of stdin")
    parser.add_argument("--name", required=True)
    parser.add_argument("--host", default="", help="the machine's name in its fleet: slots are this host's alone")
    parser.add_argument("--cpu", type=int, default=0, metavar="N", help="trials built at once")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="1: checks and times trials")
    parser.add_argument("--tls", metavar="FILE", help="certificate and key of the search, if it has some")
    parser.add_argument("--folder", required=True, help="for Dask's own files")
    options = parser.parse_args(argv)
    if os.environ.pop(keeper.KEEPER, None) == str(os.getppid()):
        process.owner_of(os.getppid())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a step's SIGTERM is for the engine; commands must not inherit SIG_IGN
    if HOST in os.environ:  # the engine is elsewhere, and must not hear of commands that the same SIGTERM ended
        signal.signal(signal.SIGTERM, lambda *_: os._exit(LOST))
    serving = os.environ.pop(slot.SERVING, None)
    if serving is not None:
        slot.Slot.begin(slot.Serving(**json.loads(serving)))
    addresses: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(addresses,), daemon=True).start()
    with dask_settings.applied():
        if options.address is None:
            options.address = addresses.get()
        if options.tls is not None and not os.path.exists(options.tls):
            options.tls = None
        return asyncio.run(_serve(options))


def _listen(addresses: queue.SimpleQueue[str]) -> None:
    """What comes on stdin; the end of it is that of this process."""
    heard = b""
    while True:
        said = os.read(0, 4096)
        if not said:
            os._exit(0)  # what it was doing nobody waits for
        *lines, heard = (heard + said).split(b"\n")
        for line in lines:
            if line.startswith(tasks.BEGIN):
                what = base64.b64decode(line[len(tasks.BEGIN) :])
                tasks.begin(*pickle.loads(what))  # noqa: S301 - of who started this process
            else:
                addresses.put(line.decode())


async def _serve(options: argparse.Namespace) -> int:
    from distributed import Worker

    said = os.environ.get(HOST)
    more: Dict[str, Any] = {} if said is None else _of_a_fleet(json.loads(said), options.tls)
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
    if said is None:
        async with worker:
            await worker.finished()  # type: ignore[no-untyped-call]
        return 0
    try:
        await worker
    except Exception as error:  # noqa: BLE001 - no answer, the wrong key, or its name is taken by who was here before
        print("%s cannot join: %s" % (options.name, one_line(str(error))), file=sys.stderr, flush=True)
        return LOST
    await _stay(worker, options, os.path.dirname(options.folder))
    os._exit(LOST)


def _of_a_fleet(host: Dict[str, Any], tls: Optional[str]) -> Dict[str, Any]:
    """The scheduler knows workers by their addresses, and those of many machines' loopbacks may be the same. Nobody
    ever connects to them."""
    place = secrets.token_bytes(2)
    address = "127.%d.%d.%d:%d" % (1 + secrets.randbelow(254), *place, 1024 + secrets.randbelow(64000))
    return {
        "contact_address": ("tls://" if tls else "tcp://") + address,
        "startup_information": {roster.FACTS: lambda _: host},
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
            os._exit(DISMISSED)
        await asyncio.sleep(ASK_S)


async def _dismissed(worker: Any, host: str) -> Optional[str]:
    """What the scheduler says to this host, or to all."""
    try:
        said = await asyncio.wait_for(worker.scheduler.events(topic=CONTROL), ANSWER_S)
    except asyncio.TimeoutError:
        os._exit(LOST)
    except OSError:  # it will be noticed
        return None
    for _, one in said:
        if isinstance(one, dict) and one.get("to") in ("", host):
            return one_line(str(one.get("say")))
    return None


def _note(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
        stream.write(text)


if __name__ == "__main__":
    sys.exit(main())
