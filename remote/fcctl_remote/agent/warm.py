"""``warm``: while a run's source is sent, a process reads from the disk what its steps take long to load.

A machine that was just started has PyTorch on a cold disk, and a fresh installation of it may not be compiled to
bytecode yet: then the first import takes twice as long as others. It happens here once a boot for each environment.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from fcctl_remote.base import files
from fcctl_remote.base.layout import Layout
from fcctl_remote.run import environment, tmux
from fcctl_remote.run.queue import HostLock

#: How long the import may take, seconds; who needs it waits for nobody.
TIMEOUT_S = 120.0
#: Environments that are remembered.
KEPT = 8


def begin(layout: Layout, runner: list[str], given: Mapping[str, str]) -> None:
    """Start a process for it, unless one ran since the machine started, or a run has the machine and may be measuring
    times. ``given`` is the plan's environment."""
    from fcctl_remote.probe.environment import key_of

    env = {**environment.of_submission(), **given}
    key = key_of(env, layout.root)
    keys = (files.read_object(layout.warmed) or {}).get("keys")
    known = keys if isinstance(keys, list) else []
    if key in known or not HostLock.is_free(layout):
        return
    files.write_atomic(layout.warmed, files.to_json({"keys": [*known, key][-KEPT:]}), durable=False)
    nothing = subprocess.DEVNULL
    command = tmux.command_line(runner, layout.root, "warm")
    _HELD.append(
        subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, env=env, start_new_session=True)
    )


#: Kept so that nobody reaps the child before this process ends.
_HELD: list[object] = []


def warm(layout: Layout) -> int:
    """Find out what the steps' environment is, which the run will ask for, and import PyTorch in it, if it is there."""
    from fcctl_remote.base.programs import run
    from fcctl_remote.probe.environment import apply_facts, load_facts

    facts = load_facts(os.environ, layout.root)
    if facts["torch_file"]:
        env = {**os.environ, **apply_facts(os.environ, facts)}
        run([env["FCCTL_PYTHON"], "-c", "import torch"], TIMEOUT_S, env)
    return 0
