"""The full warm round trip over loopback SSH against the script a user would write.

Both bring one changed file of 200 (2 MB) to the host, run a trivial job in tmux there, and bring its results back.
The script is ``rsync; ssh tmux; rsync`` over one multiplexed OpenSSH connection, with no checks at all; fcctl also
snapshots, verifies, journals, gates, checksums and indexes. Each opens a connection of its own and closes it. They
alternate A B B A, and the figure is the median of the paired ratios.

Usage: python benchmarks/round_trip.py [ROUNDS]
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "remote")]

from benchmarks.figures import Figure, as_installed, machine, report  # noqa: E402
from tests.support.sshd import LoopbackSshd  # noqa: E402

FILES, FILE_BYTES = 200, 10_000
TARGET_RATIO = 1.5

SCRIPT = """\
set -eu
cd "$WORKSPACE"
ssh() { command ssh -F "$CONFIG" -o ControlMaster=auto -o ControlPath="$SOCKET" -o ControlPersist=5 "$@"; }
trap 'ssh -O exit box 2>/dev/null || true' EXIT
export RSYNC_RSH="ssh -F $CONFIG -o ControlPath=$SOCKET"
ssh box true
rsync -a --delete --exclude .git --exclude results ./ box:work/
ssh box "tmux new-session -d -s $NAME 'cd work && sh job.sh > out.txt 2>&1'
         while tmux has-session -t $NAME 2>/dev/null; do sleep 0.02; done"
rsync -a box:work/out.txt "$RESULTS/"
"""


def make_workspace(root: Path, server: LoopbackSshd) -> None:
    """A repository whose target ``box`` is ``server``."""
    config = (
        f'[project]\nname = "bench"\n[targets.box]\nkind = "ssh"\nhost = "box"\nssh_config = "{server.ssh_config}"\n'
    )
    make_repository(root, config)


def make_repository(root: Path, config: str) -> None:
    """A git repository of 200 files and 2 MB, with a job that does next to nothing. ``config`` is its fcctl.toml."""
    numbers = random.Random(1)
    for i in range(FILES - 3):
        path = root / f"src/{i % 10}/file{i}.cu"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbers.randbytes(FILE_BYTES // 2).hex().encode())
    (root / "job.sh").write_text("echo hello\n")
    (root / "jobs").mkdir()
    (root / "jobs/trivial.yaml").write_text("job: trivial\nsteps:\n  - id: hello\n    run: sh job.sh\n")
    (root / "fcctl.toml").write_text(config)
    (root / ".gitignore").write_text("results/\n")
    commit = ["-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-qm", "x"]
    for words in (["init", "-q"], ["add", "-A"], commit):
        subprocess.run(["git", *words], cwd=root, check=True, stdout=subprocess.DEVNULL)


def touch_one(root: Path, n: int) -> None:
    with (root / "src/0/file0.cu").open("a") as f:
        f.write(f"// edit {n}\n")


def timed(argv: list[str], env: dict[str, str], cwd: Path) -> float:
    start = time.perf_counter()
    done = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{argv} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return elapsed


def in_turns(
    first: tuple[list[str], dict[str, str]], second: tuple[list[str], dict[str, str]], workspace: Path, rounds: int
) -> list[tuple[float, float]]:
    """Seconds of both commands, each with its environment, in pairs: A B B A; each finds one changed file. Two warm-ups
    of each do not count."""
    pairs = []
    for n in range(-2, rounds):
        seconds = []
        for number, (argv, env) in enumerate((first, second) if n % 2 == 0 else (second, first)):
            touch_one(workspace, 2 * n + number)
            seconds.append(timed(argv, env, workspace))
        pairs.append((seconds[0], seconds[1]) if n % 2 == 0 else (seconds[1], seconds[0]))
    return pairs[2:]


def measure_all(rounds: int = 16) -> list[Figure]:
    """Seconds of both, and the ratio that counts."""
    folder = Path(tempfile.mkdtemp(prefix="fcb", dir="/tmp"))
    server = LoopbackSshd()
    try:
        server.start()
        workspace = folder / "work"
        workspace.mkdir()
        make_workspace(workspace, server)
        (folder / "home").mkdir()
        env = as_installed({**os.environ, "HOME": str(folder / "home")})
        script_env = {
            **env, "WORKSPACE": str(workspace), "CONFIG": str(server.ssh_config), "SOCKET": str(folder / "cm"),
            "RESULTS": str(folder), "NAME": "bench",
        }  # fmt: skip
        fcctl = [str(Path(sys.executable).parent / "fcctl"), "run", "trivial", "--on", "box", "-q"]
        pairs = in_turns((["bash", "-c", SCRIPT], script_env), (fcctl, env), workspace, rounds)
        bare, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(ours / bare for bare, ours in pairs)
        return [
            Figure("warm round trip over SSH: bare script", bare, "s"),
            Figure("warm round trip over SSH: fcctl run", ours, "s"),
            Figure("warm round trip over SSH: paired ratio", ratio, "x", TARGET_RATIO),
        ]
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    print(machine())
    sys.exit(report(measure_all(*(int(word) for word in sys.argv[1:]))))
