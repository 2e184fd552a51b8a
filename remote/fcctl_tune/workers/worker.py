"""``python -m fcctl_tune.workers.worker --name gpu-0 --gpu 1 ..``: one Dask worker, while its stdin is open.

The first line of stdin is JSON: the scheduler's ``address``, and ``pem``, the key to it or null. A worker has
``--cpu N`` slots for builds, or one ``--gpu`` slot for checks and timings, one at a time. Trials run in processes that
it starts and that end with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import secrets
import signal
import sys
import threading
from concurrent.futures import Future
from typing import Any, Dict, List, NoReturn, Optional

from fcctl_remote.base.text import one_line
from fcctl_tune.trial import process, slot
from fcctl_tune.workers import membership
from fcctl_tune.workers.cluster import MEMBER
from fcctl_tune.workers.hosts import resource

#: Exit codes: dismissed, for the reason in the file GOODBYE; the scheduler is lost.
DISMISSED, LOST = 90, 91
#: Files beside its own folder: why it was dismissed; that the scheduler admitted it.
GOODBYE, JOINED = "goodbye", "joined"
#: Seconds until a scheduler admits it, between two questions whether it is dismissed, and until an answer: a tunnel may
#: be silent.
START_S, ASK_S, ANSWER_S = 30, 0.5, 30.0


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fcctl_tune.workers.worker")
    add = parser.add_argument
    add("--name", required=True)
    add("--host", default="", help="the key of the worker's host; only this host's trials use the worker")
    add("--cpu", type=int, default=0, metavar="N", help="number of trials built at the same time")
    add("--gpu", type=int, default=0, metavar="N", help="1: checks and times trials")
    add("--folder", required=True, help="folder for Dask's files")
    add("--trial-spec", metavar="FILE", help="the search whose `serve` command starts immediately")
    options = parser.parse_args(argv)
    process.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a step's SIGTERM is for the engine; commands must not inherit SIG_IGN
    if MEMBER in os.environ:  # a remote engine must not get results of commands that the same SIGTERM ended
        signal.signal(signal.SIGTERM, lambda *_: _leave(LOST))
    if options.trial_spec is not None:
        with open(options.trial_spec, "rb") as stream:
            slot.Slot.here(pickle.load(stream)).begin()  # noqa: S301 - from the parent process
    threading.Thread(target=_end_with_stdin, args=(told := Future[bytes](),), daemon=True).start()
    with membership.applied():
        return asyncio.run(_serve(options, **json.loads(told.result())))


def _end_with_stdin(told: Future[bytes]) -> None:
    """Read the first line; at the end of stdin end this process and all that it started."""
    received = b""
    while chunk := os.read(0, 4096):
        received += chunk
        if b"\n" in received and not told.done():
            told.set_result(received.partition(b"\n")[0])
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End at once, with all descendants."""
    process.end_descendants()
    os._exit(code)


async def _serve(options: argparse.Namespace, address: str, pem: Optional[str]) -> int:
    from distributed import Worker

    member = os.environ.get(MEMBER)
    more: Dict[str, Any] = {} if member is None else _of_a_fleet(json.loads(member)["facts"], address)
    slots = {"gpu": options.gpu} if options.gpu else {"cpu": options.cpu}
    worker = Worker(
        address, name=options.name, host="127.0.0.1", nthreads=max(options.gpu, options.cpu), memory_limit=0,
        resources={resource(slot, options.host): count for slot, count in slots.items()}, dashboard=False,
        local_directory=options.folder, security=membership.security(pem), death_timeout=START_S, **more,
    )  # fmt: skip
    if member is None:
        async with worker:
            await worker.finished()  # type: ignore[no-untyped-call]
        return 0
    try:
        await worker
    except Exception as error:  # noqa: BLE001 - no answer, the wrong key, or a name that is still in use
        print("%s cannot join: %s" % (options.name, one_line(str(error))), file=sys.stderr, flush=True)
        _leave(LOST)
    await _stay(worker, options, os.path.dirname(options.folder))
    _leave(LOST)


def _of_a_fleet(facts: Dict[str, Any], scheduler: str) -> Dict[str, Any]:
    """A random address, to which nobody connects: the scheduler tells the workers of many loopbacks apart by it."""
    numbers = 1 + secrets.randbelow(254), *secrets.token_bytes(2), 1024 + secrets.randbelow(64000)
    return {
        "contact_address": scheduler.partition(":")[0] + "://127.%d.%d.%d:%d" % numbers,
        "startup_information": {membership.FACTS: lambda _: facts},
    }


async def _stay(worker: Any, options: argparse.Namespace, folder: str) -> None:
    """Work until the scheduler is lost or dismisses this worker."""
    from distributed.core import Status

    _note(folder, JOINED, options.name)
    while worker.status in (Status.running, Status.paused):
        reason = await _dismissed(worker, options.host) if options.cpu else None
        if reason is not None:
            _note(folder, GOODBYE, reason)
            _leave(DISMISSED)
        await asyncio.sleep(ASK_S)


async def _dismissed(worker: Any, host: str) -> Optional[str]:
    """Why the scheduler dismisses this host, or all; None if it does not."""
    try:
        events = await asyncio.wait_for(worker.scheduler.events(topic=membership.CONTROL), ANSWER_S)
    except asyncio.TimeoutError:
        _leave(LOST)
    except OSError:  # the worker's status shows it
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
