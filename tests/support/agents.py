"""Agents that behave as a test says, in place of the host program: for what the real one would never do.

A target's ``python`` is the program that starts the agent, so a script in its place is the agent. The script gets
``send(object, blob=b"")``, ``receive()`` (a request), ``hello(**changes)``, ``ready()`` and ``SHA256``.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from orchestrator.machines.connect.bootstrap import RunnerArchive

PRELUDE = """\
#!{python}
import json, os, sys, time
if sys.argv[1:] == ["-V"]:
    print("Python 3.11.0")
    sys.exit(0)
# ``SHA256.pyz``, or the copy that it unpacked: ``SHA256.d/__main__.py``.
SHA256 = next(part.split(".")[0] for part in sys.argv[3].split("/")[::-1] if part != "__main__.py")
out, inp = sys.stdout.buffer, sys.stdin.buffer

def ready():
    out.write(b"FCCTL-AGENT-READY 1\\n")
    out.flush()

def send(message, blob=b""):
    if blob:
        message = dict(message, blob=len(blob))
    out.write(json.dumps(message).encode() + b"\\n" + blob)
    out.flush()

def receive():
    line = inp.readline()
    if not line:
        sys.exit(0)
    request = json.loads(line)
    request["data"] = inp.read(request.get("blob", 0))
    return request

def hello(**changes):
    ready()
    request = receive()
    assert request["method"] == "hello"
    result = dict(wire_version=1, runner_sha256=SHA256, python=sys.executable, platform="linux", hostname="h",
                  user="u", home="/h", root="/h/.fcctl", boot_id="b", time=1.0, cpus=2, free_bytes=10, tools={{}})
    result.update(changes)
    send({{"id": request["id"], "result": result}})

"""


def scripted_python(folder: Path, body: str, name: str = "agent-python") -> str:
    """The path of a "Python" that, started as the agent, runs ``body``."""
    script = folder / name
    script.write_text(PRELUDE.format(python=sys.executable) + textwrap.dedent(body))
    script.chmod(0o755)
    return str(script)


def fake_runner(folder: Path) -> RunnerArchive:
    """A runner archive that is never executed."""
    path = folder / "runner.pyz"
    path.write_bytes(b"not executed")
    return RunnerArchive(path, "ab" * 32)
