"""The environment a step runs in."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.layout import Layout, RunLayout
from fcctl_remote.probe.environment import apply_facts, resolve_environment
from fcctl_remote.record import Any

#: Belongs to the connection that submitted the run, not to the run; the agent's socket would even be a credential.
CONNECTION_ONLY = (
    "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "SSH_ORIGINAL_COMMAND", "TMUX", "TMUX_PANE", "TERM",
    "OLDPWD", "PWD", "SHLVL", "_", "FCCTL_ROOT",
)  # fmt: skip


def of_submission() -> dict[str, str]:
    """What a run takes over from the call that submitted it, whatever the tmux server was started with."""
    return {name: value for name, value in os.environ.items() if name not in CONNECTION_ONLY}


def for_run(
    layout: Layout, run: RunLayout, plan: wire.RunPlan, runner: list[str], warn: Callable[[str], None]
) -> dict[str, str]:
    """The part all steps of a run share."""
    base: dict[str, str] = {**_base(run), **plan.env}
    try:
        resolved = resolve_environment(base, layout.root)
    except Exception as error:  # noqa: BLE001 - a machine we cannot make out may still build and test
        warn("the CUDA environment could not be resolved: %s: %s" % (type(error).__name__, error))
        resolved = apply_facts(base, {})
    env = {"PYTHONUNBUFFERED": "1", **base, **resolved}
    _write_shim(run, runner, layout.root)
    env["PATH"] = run.bin + os.pathsep + env.get("PATH", os.defpath)
    env["FCCTL_RUN_ID"] = run.run_id
    env["FCCTL_RUN_DIR"] = run.folder
    env["FCCTL_ARTIFACTS"] = run.artifacts
    env["FCCTL_HOST"] = run.shim
    return env


def for_step(shared: Mapping[str, str], run: RunLayout, step: wire.StepSpec) -> dict[str, str]:
    env = dict(shared)
    env.update(step.env)
    if "PATH" in step.env:
        env["PATH"] = run.bin + os.pathsep + step.env["PATH"]
    env["FCCTL_RUN_ID"] = run.run_id
    env["FCCTL_STEP"] = step.id
    env["FCCTL_OUT"] = run.step(step.id).out
    _find_beside_python(env)
    return env


def _find_beside_python(env: dict[str, str]) -> None:
    """What pip installs beside ``$FCCTL_PYTHON`` (ninja, cmake) is found by name, after all that was found before."""
    folder = os.path.dirname(env.get("FCCTL_PYTHON", ""))
    path = env.get("PATH", os.defpath).split(os.pathsep)
    if os.path.isabs(folder) and folder not in path:
        env["PATH"] = os.pathsep.join([*path, folder])


def _base(run: RunLayout) -> dict[str, str]:
    stored: Any = files.read_object(run.submission) or {}
    env = stored.get("env")
    if not isinstance(env, dict):
        return {name: value for name, value in os.environ.items() if name not in CONNECTION_ONLY}
    return {str(name): str(value) for name, value in env.items()}


def _write_shim(run: RunLayout, runner: list[str], root: str) -> None:
    """``fcctl-host``: this very host program, for use in steps."""
    files.own_folder(run.bin)
    words = " ".join(shlex.quote(word) for word in [*runner, "--root", root])
    files.write_atomic(run.shim, ('#!/bin/sh\nexec %s "$@"\n' % words).encode(), durable=False, mode=0o755)
