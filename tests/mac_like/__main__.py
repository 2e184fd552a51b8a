"""``python -m tests.mac_like [PYTEST ARGUMENTS]``: tests on the nearest thing to a Mac that a Linux machine can be.

Every Python says that it is macOS and has no /proc (``site/sitecustomize.py``); the home folder has a blank and letters
that are not ASCII; the folder for temporary files has a name as long as macOS gives it; and programs refuse options
that only their GNU versions have, rsync hands its remote shell descriptors that do not block, and launchctl is busy for
a while after a `bootout` (``programs.py``). Names in these folders differ by more than case (``casefold.c``). A machine
of the tests behind an sshd is Linux, as GPU machines are. ``MAC_BASH``, if set, is the bash of all scripts: a Mac's is
3.2, which no package registry has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mac_like import programs
from tests.support import scratch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: What a Mac does as the controller: commands, the sandbox, its own scheduler, what goes to a machine and comes back.
TESTS = (
    "tests/mac_like", "tests/unit/docs/test_setup_script.py",
    "tests/unit/base", "tests/unit/cli", "tests/unit/machines", "tests/unit/runs", "tests/unit/schedules",
    "tests/integration/cli", "tests/integration/emulator", "tests/integration/host_program",
    "tests/integration/machines", "tests/integration/runs", "tests/integration/schedules",
)  # fmt: skip
#: What `make test-all` runs of it: of what asks the system for files, locks, processes and programs, the shortest.
SAMPLE = (
    "tests/mac_like", "tests/unit/base/test_files.py", "tests/unit/base/test_journal.py",
    "tests/unit/base/test_log_file.py", "tests/unit/schedules/test_scheduler_calls.py",
    "tests/unit/schedules/test_child_process.py", "tests/unit/schedules/test_fire.py",
    "tests/unit/machines/test_runner_archive.py",
    "tests/unit/machines/test_host_commands.py", "tests/unit/machines/test_machine_cache.py",
    "tests/unit/machines/test_ssh_config.py", "tests/unit/machines/test_known_hosts.py",
    "tests/unit/machines/test_sandbox_folder.py",
    "tests/integration/machines/test_inline_upload.py", "tests/integration/emulator/test_life_of_an_instance.py",
    "tests/integration/cli/test_jobs_and_config.py", "tests/integration/cli/test_price_refresh.py",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """The exit code of pytest."""
    base = Path(tempfile.mkdtemp(prefix="mac", dir=scratch.folder()))
    try:
        home = base / "Users" / "Zoë Müller"
        temporary = base / "var/folders/zz/zyxvpxvq6csfxvn_n0000000000000" / "T"
        for folder in (home, temporary):
            folder.mkdir(parents=True)
        own = str(Path(sys.executable).parent)
        path = os.pathsep.join([own, str(programs.install(base / "bin", os.environ["PATH"]))])
        env = {
            **os.environ, "HOME": str(home), "TMPDIR": f"{temporary}/", "PATH": path, "PYTHONPATH": str(HERE / "site"),
            "MAC_LIKE": "1", "CASEFOLD_ROOT": str(base), "LD_PRELOAD": str(base / "casefold.so"),
        }  # fmt: skip
        folds = ["cc", "-O1", "-shared", "-fPIC", "-o", env["LD_PRELOAD"], str(HERE / "casefold.c"), "-ldl"]
        subprocess.run(folds, check=True)
        tests = [one for one in arguments if not one.startswith("-") and Path(one.partition("::")[0]).exists()]
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, *(() if tests else TESTS)]
        return subprocess.run(argv, cwd=ROOT, env=env, check=False).returncode
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
