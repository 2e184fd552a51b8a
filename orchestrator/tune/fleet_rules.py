"""A search on several machines: their names, their jobs, and the files by which they find each other. Pure.

The search is a run on the leader, where its scheduler listens on loopback. Each worker host has a run of its own, a
*member*, whose workers join through this computer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fcctl_remote import wire
from orchestrator.base import json_text
from orchestrator.base.errors import HostFault, UsageError
from orchestrator.machines.targets import CloudTarget, LocalTarget, Target
from orchestrator.runs.job.job import Job, Step

#: The job of a member; no file has it.
MEMBER = "tune-member"
#: In a run's private folder: where the scheduler is, for the leader and for a member.
SCHEDULER_FILE, JOIN_FILE = "fleet.json", "join.json"
MEMBER_COMMAND = '"$FCCTL_TUNE_PYTHON" "$FCCTL_TUNE" member'
#: A key and its certificate are some 2 KB.
MAX_FILE_BYTES = 64 * 1024
MOST_HOSTS = 16
#: A line of the search's log that is about one machine: ``host b: 2 x NVIDIA L4, 15 builds at once``.
HOST_LINE = re.compile(rb"host [A-Za-z0-9][A-Za-z0-9._-]{0,62}: [^\r\n]{1,300}")


def machines(target: Target, count: int) -> list[Target]:
    """``target`` and further machines like it, called after it: ``l4``, ``l4-2``, ``l4-3``. Raises UsageError: it is no
    kind of machine that can be made, or there is no room for a number in its name."""
    if not isinstance(target, CloudTarget):
        raise UsageError(
            f"--hosts {count}: fcctl can create machines only for a target of kind gcp, and {target.name} is of kind "
            f"{target.kind}",
            hint="name each machine instead: --on ONE --on OTHER",
        )
    last = f"-{count}"
    if len(target.name) + len(last) > 24 or len(target.instance) + len(last) > 63:
        raise UsageError(
            f"--hosts {count}: the name of {target.name} or of its instance is too long to add a number",
            hint=f"shorten the name in [targets.{target.name}], or its `instance`",
        )
    more = [
        target.model_copy(update={"name": f"{target.name}-{n}", "instance": f"{target.instance}-{n}"})
        for n in range(2, count + 1)
    ]
    return [target, *more]


def machine_of(targets: Mapping[str, Target], name: str) -> Target | None:
    """The machine that :func:`machines` calls ``name``: ``l4-2`` of the target ``l4``. None: it calls none so."""
    base, _, number = name.rpartition("-")
    target = targets.get(base)
    counts = {str(n): n for n in range(2, MOST_HOSTS + 1)}
    if name in targets or number not in counts or not isinstance(target, CloudTarget):
        return None
    *_, last = machines(target, counts[number])
    return last


def further(targets: Mapping[str, Target], name: str) -> Iterator[CloudTarget]:
    """All machines that :func:`machines` could make of the target ``name``, as far as their names allow it."""
    for number in range(2, MOST_HOSTS + 1):
        try:
            machine = machine_of(targets, f"{name}-{number}")
        except UsageError:  # no room for a number of so many digits, nor for a greater one
            return
        if isinstance(machine, CloudTarget):
            yield machine


def check_apart(hosts: Sequence[Target]) -> None:
    """Raises UsageError if two of them are the same machine, one is this computer, or there are too many."""
    if len(hosts) > MOST_HOSTS:
        raise UsageError(
            f"a search uses at most {MOST_HOSTS} machines; you gave {len(hosts)}",
            hint="remove some of the --on options",
        )
    seen: dict[str, str] = {}
    for host in hosts:
        if isinstance(host, LocalTarget):
            raise UsageError(
                f"{host.name} is this computer, which takes no part in a search on several machines",
                hint="search on the other machines; or on this computer alone",
            )
        machine = host.model_dump_json(exclude={"name", "env", "usd_per_hour", "idle", "python", "root"})
        if machine in seen:
            other = seen[machine]
            twice = (
                f"{host.name} is named twice" if other == host.name else f"{other} and {host.name} are the same machine"
            )
            raise UsageError(
                f"{twice}: a search uses a machine only once", hint="name it once: the search uses all its GPUs"
            )
        seen[machine] = host.name


def member_job(search: wire.RunPlan, name: str, env: Mapping[str, str]) -> Job:
    """The job of the worker host ``name``. Its step passes if the search dismissed it, and is ``warned`` if it gave up
    waiting."""
    (step,) = search.steps
    run = f'{MEMBER_COMMAND} --host {name} --spec "$FCCTL_TUNE_SPEC" --join "$FCCTL_RUN_DIR/fleet/{JOIN_FILE}"'
    member = Step(
        id="member", run=run, tune="member", timeout=step.timeout_s, activity="tune",
        exit_codes={"69": "unavailable", "75": "warned"}, env={},
    )  # fmt: skip
    return Job(job=MEMBER, title=f"Worker host of {search.run_id}: {search.title}"[:200], env=dict(env), steps=[member])


@dataclass(frozen=True)
class Scheduler:
    """The port of the search's scheduler on the leader's loopback, and the secret key that admits to it."""

    port: int
    tls: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Scheduler(port={self.port})"

    @classmethod
    def read(cls, data: bytes, name: str) -> Scheduler:
        """From the file that the machine ``name``, which is not trusted, wrote. Raises HostFault: it is not valid, or
        there is no key."""
        try:
            entry = json_text.loads(data)
            port, tls = entry["port"], entry["tls"]
            sound = entry["schema"] == 1 and type(port) is int and 0 < port < 65536
        except (ValueError, KeyError, TypeError, AttributeError):
            sound = False
        if not sound:
            raise HostFault(
                f"the scheduler's address from {name} is invalid", hint=f"check it: fcctl doctor --on {name}"
            )
        if not isinstance(tls, dict):
            raise HostFault(
                f"{name} has no key for its search, so any user of the other machines could run commands on it",
                hint=f"install openssl on {name}, then start the search again",
            )
        return cls(port, tls)

    def invitation(self, port: int) -> bytes:
        """A member's file: the scheduler answers on ``port`` of its loopback."""
        return json.dumps({"schema": 1, "scheduler": port, "tls": self.tls}).encode()
