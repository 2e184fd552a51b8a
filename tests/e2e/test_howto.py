"""docs/howto/: every page typed into bash as it stands, in a repository with two branches and a machine over SSH.

Its YAML becomes a job, its TOML a part of fcctl.toml. docker, nsys and nvidia-smi are stand-ins on that machine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import fake_docker_path
from tests.support.scripts import launcher, script
from tests.support.sshd import LoopbackSshd
from tests.support.workspace import REPOSITORY, Workspace

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("tmux") is None or sys.platform != "linux", reason="needs tmux and /proc"),
]
PATH = "/usr/local/bin:/usr/bin:/bin"
PAGES = REPOSITORY / "docs/howto"
BLOCK = re.compile(r"^```(sh|toml|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BENCH = """\
steps:
  - id: bench
    run: for i in 1 2 3 4 5 6 7 8 9; do echo "copy time_us=$(($(cat time) + i))"; done > times.txt
    collect: [{reader: times, file: times.txt}]
"""
PROGRAMS = {
    "nvidia-smi": 'echo "GPU 0: NVIDIA L4 (UUID: GPU-0)"',
    "nsys": """case $1 in
  profile) touch "$3.nsys-rep" ;;
  stats) echo " Time (%)  Total Time (ns)  Instances  Avg (ns)  Name"
         echo " --------  ---------------  ---------  --------  -------"
         echo "     99.0          123,456         10  12,345.6  softmax" ;;
esac""",
}


class Reader:
    """Follows a page in a repository whose ~/.ssh/config knows gpu-box."""

    def __init__(self, folder: Path, home: Path, server: LoopbackSshd) -> None:
        self.server, self.bin = server, server.home / "bin"
        self.workspace = Workspace(folder / "w", home)
        self.root = self.workspace.root
        (self.root / "fcctl.toml").unlink()
        (home / ".ssh").mkdir(mode=0o700)
        self.config = home / ".ssh/config"
        self.config.write_text(server.ssh_config.read_text().replace("Host box\n", "Host gpu-box\n"))
        self.path = launcher(home / "bin").parent
        for name, body in PROGRAMS.items():
            script(self.bin / name, body)
        server.environment["PATH"] = f"{self.bin}:{PATH}"
        server.restart()

    def type(self, typed: str) -> str:
        """What a script printed in all; its exit code must be 0."""
        env = self.workspace.env(PATH=f"{self.path}:{PATH}", RSYNC_RSH=f"ssh -F {self.config}")
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", typed], cwd=self.root, env=env, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{typed}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def prepare(self) -> None:
        """What the page about one's own repository does, a job bench, and a commit on each of two branches."""
        self.type("fcctl init --host gpu-box")
        with (self.root / "fcctl.toml").open("a") as config:
            config.write('[targets.l4]\nkind = "local"\nusd_per_hour = 0.75\n')
        (self.root / "jobs/bench.yaml").write_text(f"job: bench\n{BENCH}")
        script(self.root / "bench", 'echo "copy time_us=12"')
        (self.root / "test_kernel.py").write_text("import unittest\n")
        (self.root / ".gitignore").write_text(
            "results/\nweights/\ntoken.txt\n*.zst\n*.csv\nreport.*\nrun.json\ncomment.md\n"
        )
        (self.root / "token.txt").write_text("hf-1234567890")
        git = "git -c user.name=a -c user.email=a@b.c"
        self.type(f"git init -qb main; echo 100 > time; git add -A; {git} commit -qm main")
        self.type(f"git switch -qc tuned; echo 80 > time; git add -A; {git} commit -qm tuned")

    def follow(self, page: str, **replaced: str) -> str:
        """Everything that the commands of a page print."""
        text, printed = (PAGES / f"{page}.md").read_text(), ""
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        for language, block in BLOCK.findall(text):
            if language == "yaml":
                (self.root / f"jobs/{block.split()[1]}.yaml").write_text(block)
            elif language == "toml":
                with (self.root / "fcctl.toml").open("a") as config:
                    config.write(f"\n{block}")
            else:
                printed += self.type(block)
        return printed


@pytest.fixture
def reader(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> Reader:
    return Reader(tmp_path, private_home, sshd)


@pytest.fixture
def docker(reader: Reader, tmp_path: Path) -> Iterator[None]:
    """On the machine a docker whose daemon runs."""
    with fake_docker_path.daemon(reader.bin / "docker", tmp_path / "docker", "bash", "sh", "python3", "env", "cat"):
        yield


def own_repository(reader: Reader) -> None:
    # This machine may have no GPU, of which preflight warns by its exit code.
    printed = reader.follow("own-repository", **{"fcctl preflight --on gpu  ": "fcctl preflight --on gpu || true  "})
    assert "Results" in printed
    assert "compute capability" in printed or "no NVIDIA GPU" in printed


def docker_page(reader: Reader) -> None:
    assert "passed" in reader.follow("docker", **{"nvcr.io/nvidia/pytorch:25.01-py3": fake_docker_path.IMAGE})


def data(reader: Reader) -> None:
    weights = str(reader.server.home / "weights")
    reader.type("mkdir weights; echo 1 > weights/layer0")
    printed = reader.follow("data", **{"/data/weights": weights})
    assert (Path(weights) / "layer0").exists()
    assert (next((reader.root / "results/runs").iterdir()) / "artifacts/tokens.txt").stat().st_size > 10
    assert "deleted" in printed


def secrets(reader: Reader) -> None:
    printed = reader.follow("secrets")
    assert "logged in with ***" in printed
    assert not [f for f in (reader.root / "results").rglob("*") if f.is_file() and b"hf-1234567890" in f.read_bytes()]


def nsys(reader: Reader) -> None:
    printed = reader.follow("nsys", **{"gpu: true, ": "", "fcctl run timeline": "fcctl run timeline --repeat 2"})
    assert re.search(r"softmax Avg +12\.3", printed), printed


def several_gpus(reader: Reader) -> None:
    reader.follow("several-gpus")
    assert {run["settings"]["CUDA_VISIBLE_DEVICES"] for run in reader.workspace.runs().values()} == {"0", "1"}


def ci(reader: Reader) -> None:
    printed = reader.follow("ci", **{"exit ${code:-0}": 'test "${code:-0}" = 0'})
    assert (reader.root / "comment.md").read_text().startswith("<!-- fcctl results compare -->")
    assert '"comparison"' in (reader.root / "run.json").read_text(), printed


def branches(reader: Reader) -> None:
    printed = reader.follow("branches", **{"fcctl ui --no-open": "# fcctl ui --no-open"})
    assert re.search(r"-19\.\d %|-20\.\d %", printed), "each branch's own runs"
    assert "and 1 more" in printed, "both launches are one side"


def share(reader: Reader) -> None:
    reader.type("for branch in main tuned; do fcctl run bench --on l4 --rev $branch; done")
    reader.follow("share")
    assert (reader.root / "report.html").read_text().startswith("<!doctype html>")
    assert (reader.root / "runs.tar.zst").stat().st_size > 1000
    assert len(reader.workspace.runs()) == 2


def spend(reader: Reader) -> None:
    printed = reader.follow("spend")
    assert "worst case" in printed
    assert "100.00" in printed, "the cap of the project"


TASKS: dict[str, Callable[[Reader], None]] = {
    "own-repository": own_repository, "docker": docker_page, "data": data, "secrets": secrets, "nsys": nsys,
    "several-gpus": several_gpus, "ci": ci, "branches": branches, "share": share, "spend": spend,
}  # fmt: skip


def test_there_is_a_test_of_every_page_and_none_is_long() -> None:
    pages = {page.stem: len(page.read_text().split()) for page in PAGES.glob("*.md")}
    assert pages.keys() == TASKS.keys()
    assert max(pages.values()) <= 300


@pytest.mark.parametrize("page", TASKS)
def test_every_command_of_the_page(page: str, reader: Reader, request: pytest.FixtureRequest) -> None:
    if page != "own-repository":
        reader.prepare()
    if page == "docker":
        request.getfixturevalue("docker")
    TASKS[page](reader)
