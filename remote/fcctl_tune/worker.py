"""``python -m fcctl_tune.worker ADDRESS --name gpu-0 --gpu 1``: one Dask worker, for as long as its stdin is open.

A worker has ``--cpu N`` slots in which trials are built, or one ``--gpu`` slot in which they are checked and timed, one
at a time. It runs in a process of its own, below a :mod:`fcctl_tune.keeper`, and imports no library of the kernels:
what trials do happens in processes that it starts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from typing import List, Optional

from fcctl_tune import dask_settings, keeper, process
from fcctl_tune.cluster import resource


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fcctl_tune.worker")
    parser.add_argument("address", nargs="?", help="of the scheduler; default: the first line of stdin")
    parser.add_argument("--name", required=True)
    parser.add_argument("--host", default="", help="the machine's name in its fleet: slots are this host's alone")
    parser.add_argument("--cpu", type=int, default=0, metavar="N", help="trials built at once")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="1: checks and times trials")
    parser.add_argument("--tls", metavar="FILE", help="certificate and key of the search")
    parser.add_argument("--folder", required=True, help="for Dask's own files")
    options = parser.parse_args(argv)
    if os.environ.pop(keeper.KEEPER, None) == str(os.getppid()):
        process.kept_by(os.getppid())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a step's SIGTERM is for the engine; commands must not inherit SIG_IGN
    with dask_settings.applied():
        if options.address is None:  # told late, so that imports need not wait for the scheduler
            options.address = sys.stdin.readline().strip()
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        return asyncio.run(_serve(options))


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)  # what it was doing nobody waits for


async def _serve(options: argparse.Namespace) -> int:
    from distributed import Worker

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
        death_timeout=30,
    )
    async with worker:
        await worker.finished()  # type: ignore[no-untyped-call]
    return 0


if __name__ == "__main__":
    sys.exit(main())
