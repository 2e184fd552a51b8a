"""A virtual environment of a run's own on top of the machine's Python with torch, by a ``.pth`` file: that Python is
often in a virtual environment itself, whose packages ``--system-site-packages`` does not show."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Mapping
from typing import Any

from fcctl_remote.base.programs import ask, run

#: In the new environment, beside what is installed there, which goes first.
PTH = "fcctl-target.pth"
TIMEOUT_S = 300.0

# What the Python below says of itself, whatever modules lie where the step works.
_ASK = """
import json, os
from importlib.util import find_spec
places = [p for p in sys.path if p.rstrip("/").endswith(("site-packages", "dist-packages")) and os.path.isdir(p)]
print(json.dumps({"places": places, "pip": find_spec("pip") is not None}))
"""


class VenvError(Exception):
    """``message`` says what happened, ``hint`` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def make(folder: str, env: Mapping[str, str]) -> None:
    """Make one in ``folder`` that has pip and sees the packages of ``$FCCTL_PYTHON``; one that is there is kept. Raises
    VenvError: that Python does not run, or makes none."""
    python = env.get("FCCTL_PYTHON") or sys.executable
    below = _ask(python, env)
    # pip that is seen from below installs into the environment that runs it; to unpack another takes seconds.
    words = [python, "-I", "-m", "venv", *(["--without-pip"] if below["pip"] else []), os.path.abspath(folder)]
    done = run(words, TIMEOUT_S, env)
    if not done.ok:
        output = (done.out + done.err).strip()
        raise VenvError(
            "%s cannot create a virtual environment%s" % (python, ": " + output if output else ""),
            "on the machine: apt-get install python3-venv; or set another Python: FCCTL_PYTHON in `env` of the target",
        )
    lines = ["import site; site.addsitedir(%r)\n" % place for place in below["places"]]
    for place in glob.glob(os.path.join(glob.escape(folder), "lib", "python3*", "site-packages")):
        with open(os.path.join(place, PTH), "w", encoding="utf-8") as stream:
            stream.writelines(lines)


def _ask(python: str, env: Mapping[str, str]) -> dict[str, Any]:
    answer, done = ask(python, _ASK, TIMEOUT_S, env)
    if not answer:
        raise VenvError(
            "%s does not run: %s" % (python, done.err.strip() or "exit code %s" % done.code),
            "set a Python of that machine: FCCTL_PYTHON in `env` of the target",
        )
    return answer
