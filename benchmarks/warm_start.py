"""A warm start in the cloud against plain SSH: the same run on the same machine, as ``sandbox`` and as ``ssh``.

The sandbox's machine is awake and stays so (``release = "keep"``). Its own sshd is then also a target of kind ``ssh``,
for which no cloud is asked, no fence looked at and no machine let go. Both bring one changed file of 200 (2 MB), run a
trivial job and bring its results back. They alternate A B B A, and the figure is the median of the paired ratios.

Usage: python benchmarks/warm_start.py [ROUNDS]
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "remote")]

from benchmarks.figures import Figure, as_installed, machine, report  # noqa: E402
from benchmarks.round_trip import in_turns, make_repository, timed  # noqa: E402
from orchestrator.machines.sandbox import Sandbox  # noqa: E402
from orchestrator.machines.targets import SANDBOX_INSTANCE, SANDBOX_PROJECT, SANDBOX_ZONES  # noqa: E402

TARGET_RATIO = 1.3
_SANDBOX = '[project]\nname = "bench"\n[targets.sandbox]\nkind = "sandbox"\nrelease = "keep"\nkeep_minutes = 120\n'


def ssh_target(url: str, folder: Path, key: Path) -> str:
    """``[targets.box]``: the sandbox's machine as any other that is reached over SSH."""
    where = f"{url}/compute/v1/projects/{SANDBOX_PROJECT}/zones/{SANDBOX_ZONES[0]}/instances/{SANDBOX_INSTANCE}"
    items = {item["key"]: item["value"] for item in _get(where)["metadata"]["items"]}
    keys = _get(f"{where}/getGuestAttributes?queryPath=hostkeys/")["queryValue"]["items"]
    port = items["fcctl-emulator-ssh-port"]
    known = folder / "known_hosts"
    known.write_text("".join(f"[127.0.0.1]:{port} {one['key']} {one['value']}\n" for one in keys))
    return (
        f'[targets.box]\nkind = "ssh"\nhost = "127.0.0.1"\nport = {port}\nuser = "{items["fcctl-emulator-ssh-user"]}"\n'
        f'identity_file = "{key}"\nknown_hosts = "{known}"\nssh_config = "/dev/null"\n'
    )


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def measure_all(rounds: int = 16) -> list[Figure]:
    """Seconds of both, and the ratio that counts."""
    folder = Path(tempfile.mkdtemp(prefix="fcw", dir="/tmp"))
    home = folder / "home"
    home.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "FCCTL_", "SSH_AUTH"))}
    env = as_installed({**kept, "HOME": str(home)})
    os.environ.update(HOME=str(home))
    sandbox = Sandbox(home / ".local/state/fcctl/sandbox")
    fcctl = str(Path(sys.executable).parent / "fcctl")
    try:
        workspace = folder / "work"
        workspace.mkdir()
        make_repository(workspace, _SANDBOX)
        cold = timed([fcctl, "run", "trivial", "--on", "sandbox", "-q"], env, workspace)
        (key,) = home.rglob("keys/id_ed25519")
        (workspace / "fcctl.toml").write_text(_SANDBOX + ssh_target(sandbox.url(), folder, key))
        box, emulated = ([fcctl, "run", "trivial", "--on", name, "-q"] for name in ("box", "sandbox"))
        pairs = in_turns((box, env), (emulated, env), workspace, rounds)
        plain, cloud = (statistics.median(column) for column in zip(*pairs, strict=True))
        return [
            Figure("sandbox: first run, from nothing", cold, "s"),
            Figure("warm run over plain SSH", plain, "s"),
            Figure("warm run on the sandbox", cloud, "s"),
            Figure(
                "warm run on the sandbox: paired ratio", statistics.median(b / a for a, b in pairs), "x", TARGET_RATIO
            ),
        ]
    finally:
        sandbox.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    print(machine())
    sys.exit(report(measure_all(*(int(word) for word in sys.argv[1:]))))
