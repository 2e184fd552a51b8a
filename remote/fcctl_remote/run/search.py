"""The environment of a search step: its libraries, its spec, and a Python that can run both."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from fcctl_remote import wire
from fcctl_remote.base import bundles, files, programs
from fcctl_remote.base.layout import Layout, StepLayout
from fcctl_remote.probe import pythons
from fcctl_remote.wire import Refusal

ASK_TIMEOUT_S = 10.0
_ASK = """
import json
from importlib.util import find_spec
print(json.dumps({"version": list(sys.version_info[:2]), "lacks": [m for m in %r if find_spec(m) is None]}))
"""


def furnish(
    held: contextlib.ExitStack, layout: Layout, place: StepLayout, tuning: wire.Tuning, env: dict[str, str]
) -> tuple[str, str] | None:
    """Put FCCTL_TUNE, FCCTL_TUNE_PYTHON, FCCTL_TUNE_SPEC and PYTHONPATH into the step's ``env``.

    The libraries stay where they are until ``stack`` is closed. Returns why the step cannot run, None if it can.
    """
    try:
        folder = held.enter_context(bundles.Bundles(layout).in_use(tuning.bundle))
    except Refusal as refusal:
        return refusal.error.message, refusal.error.hint or "start the job again"
    needs = bundles.contents(folder)
    python, tried = _python(env, needs)
    if python is None:
        return _no_python(needs, tried, env)
    for made in (os.path.dirname(place.folder), place.folder):
        files.own_folder(made)
    files.write_atomic(place.spec, tuning.spec.encode("utf-8") + b"\n", durable=False)
    env["FCCTL_TUNE"] = folder
    env["FCCTL_TUNE_PYTHON"] = python
    env["FCCTL_TUNE_SPEC"] = place.spec
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, env.get("PYTHONPATH"))))
    return None


def _python(env: Mapping[str, str], needs: Mapping[str, Any]) -> tuple[str | None, list[tuple[str, str]]]:
    """The first Python for the libraries, the one with torch being asked first; or what each of them lacks, those that
    are new enough first."""
    least = tuple(int(part) for part in str(needs.get("python", "3.9")).split("."))
    modules = [str(name) for name in needs.get("modules", [])]
    old: list[tuple[str, str]] = []
    lacking: list[tuple[str, str]] = []
    for python in pythons.candidates(env):
        answer = _ask(python, modules, env)
        if answer is None:
            continue
        version, lacks = answer
        if version < least:
            old.append((python, "is Python %d.%d" % version))
        elif lacks:
            lacking.append((python, "has no %s" % " and no ".join(lacks)))
        else:
            return python, []
    return None, lacking + old


def _ask(python: str, modules: list[str], env: Mapping[str, str]) -> tuple[tuple[int, int], list[str]] | None:
    answer, _ = programs.ask(python, _ASK % (modules,), ASK_TIMEOUT_S, env)
    try:
        return (int(answer["version"][0]), int(answer["version"][1])), [str(name) for name in answer["lacks"]]
    except (ValueError, LookupError, TypeError):
        return None


def _no_python(needs: Mapping[str, Any], tried: list[tuple[str, str]], env: Mapping[str, str]) -> tuple[str, str]:
    modules = [str(name) for name in needs.get("modules", [])]
    why = " (%s)" % needs["python_for"] if needs.get("python_for") else ""
    message = "no Python on this machine can run the search, which needs %s or later%s with %s" % (
        needs.get("python", "3.9"), why, " and ".join(modules),
    )  # fmt: skip
    if tried:
        message += "\n" + "\n".join("%s %s" % one for one in tried[:8])
    if tried and tried[0][1].startswith("has no"):
        hint = "on that machine: %s" % pythons.install(tried[0][0], modules, env)
    else:
        hint = "install such a Python on the machine, and set FCCTL_PYTHON to it in `env` of the target"
    return message, hint
