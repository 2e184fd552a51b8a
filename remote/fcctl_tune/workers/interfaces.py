"""What runs a search, as the engine sees it: hosts with slots, and calls that give a result or none.

:mod:`fcctl_tune.workers.cluster` has what is in use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Protocol, Sequence, Tuple

from fcctl_tune.workers.devices import Device


@dataclass(frozen=True)
class Host:
    """A machine that builds ``cpus`` trials at once, and times one on each of ``devices``. The name of a machine that
    searches alone is empty. ``sms`` are a GPU's multiprocessors, if that is known already; ``member`` is another
    each time that it joins a fleet: ``PROCESS.NUMBER``."""

    name: str
    cpus: int
    devices: Tuple[Device, ...]
    sms: Optional[int] = None
    member: str = ""

    @property
    def key(self) -> str:
        """What calls are addressed to: whoever comes after it under its name has not what was built here."""
        return f"{self.name}:{self.member}" if self.member else self.name

    @property
    def process(self) -> str:
        """Of its member, the same when that joins anew: its link broke, and nothing else is known to."""
        return self.member.partition(".")[0]

    @property
    def model(self) -> str:
        """Of its GPUs, of one model all."""
        return self.devices[0].model

    def outline(self) -> str:
        """``2 x NVIDIA L4, 15 builds at once``."""
        return "%d x %s, %d builds at once" % (len(self.devices), self.model, self.cpus)


class CallFailed(Exception):
    """A call gave no result; the message says why. ``killed``: workers died over it, again and again."""

    def __init__(self, reason: str, killed: bool = False) -> None:
        super().__init__(reason)
        self.killed = killed


class Cluster(Protocol):
    """What engine and final need of it. Calls are known by the name that :meth:`submit` gave them."""

    deaths: List[str]  # names of workers, one for each death

    @property
    def hosts(self) -> Sequence[Host]:
        """Those there now, whose GPUs are of one model. What was under way on one that is gone gives nothing more."""

    def submit(self, function: Callable[..., Any], *arguments: Any, slot: str, host: str, priority: int = 0) -> str:
        """Have ``function(*arguments)`` carried out in a slot of kind ``cpu`` or ``gpu`` of the host with the key
        ``host``; the more ``priority`` the sooner. The first argument is the search's Recipe."""

    def cancel(self, call: str) -> None:
        """Nobody waits for it any more."""

    def results(self, seconds: float) -> List[Tuple[str, Any]]:
        """Wait for what happens next; all calls that came to an end, each with its result, or :class:`CallFailed`, or a
        TuneError, with which the search cannot go on."""

    def wake(self) -> None:
        """From a signal handler or another thread: :meth:`heard` returns."""

    def mend(self) -> None:
        """Look after the workers, and who is there. Raises: TuneError, if no search is possible any more."""

    def leave_out(self, host: str, reason: str) -> None:
        """Use the one with this key no more."""


def resource(slot: str, host: str) -> str:
    """What Dask calls the slots of kind ``slot`` of the host with the key ``host``."""
    return f"{slot}:{host}" if host else slot


def worker_name(host: str, own: str) -> str:
    """``gpu-0``, in a fleet ``HOST/gpu-0``; to Dask with the host's key, since it wants each name once."""
    return f"{host}/{own}" if host else own
