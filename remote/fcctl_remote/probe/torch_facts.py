"""What torch says of itself, asked in a process of its own: importing it takes seconds and can crash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fcctl_remote.base.programs import run

#: A first import from a cold disk takes tens of seconds.
TIMEOUT_S = 90.0

_ASK = """
import json, sys
sys.path[:] = [p for p in sys.path if p]
out = {}
try:
    import torch
    out.update(version=torch.__version__, cuda_version=torch.version.cuda, cuda_available=torch.cuda.is_available())
    if out["cuda_available"]:
        out["device"] = torch.cuda.get_device_name(0)
        out["capability"] = "%d.%d" % torch.cuda.get_device_capability(0)
        out["archs"] = torch.cuda.get_arch_list()
        names = ("flash", "mem_efficient", "math", "cudnn")
        out["sdpa"] = {n: bool(getattr(torch.backends.cuda, n + "_sdp_enabled", lambda: False)()) for n in names}
    elif torch.version.cuda:
        try:
            torch.cuda.init()
        except Exception as error:
            out["why"] = str(error)[:300]
except BaseException as error:
    out["error"] = "%s: %s" % (type(error).__name__, str(error)[:300])
print("\\n" + json.dumps(out))
"""


def ask(python: str, env: Mapping[str, str]) -> dict[str, Any]:
    """``{python, version, cuda_version, cuda_available, device?, capability?, archs?, sdpa?, why?, error?}``."""
    facts: dict[str, Any] = {"python": python, "version": None, "cuda_version": None, "cuda_available": False}
    done = run([python, "-c", _ASK], TIMEOUT_S, env)
    answer: dict[str, Any] | None = None
    try:
        answer = json.loads(done.out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        pass
    if isinstance(answer, dict):
        facts.update(answer)
    elif done.timed_out:
        facts["error"] = "importing torch took over %d s" % TIMEOUT_S
    else:
        facts["error"] = "importing torch ended with code %s: %s" % (done.code, done.err.strip()[-200:])
    return facts
