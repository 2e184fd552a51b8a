"""Facts about this machine that need no program to be run, and where its programs are."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from fcctl_remote.record import Any

#: Searched after PATH: the PATH of an SSH command is not that of a login shell.
EXTRA_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/opt/homebrew/bin")
TOOLS = ("tmux", "rsync", "bash", "nvidia-smi")
#: ``fcctl hosts prepare`` creates this file after its last step; no wake repeats the steps then.
PREPARED_FILE = "/etc/fcctl-prepared"

IS_LINUX = sys.platform.startswith("linux")


def which(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The absolute path of a program, on PATH or in one of the usual folders."""
    path = (os.environ if environ is None else environ).get("PATH", "")
    for folder in path.split(os.pathsep) + list(EXTRA_PATH):
        candidate = os.path.join(folder, name)
        if os.path.isabs(candidate) and os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    return None


def runs_on(arch: str, gpu: str) -> bool:
    """Whether machine code for ``arch``, as ``sm_80``, runs on ``gpu``, as ``89``: a GPU of the same major version and
    the same or a higher minor one."""
    code, chip = arch[3:].rstrip("af"), gpu.rstrip("af")
    return code[:-1] == chip[:-1] and code[-1:] <= chip[-1:]


def boot_id() -> str:
    """What changes when the machine restarts; empty where the system does not tell. An emulated instance restarts
    without its kernel."""
    emulated = os.environ.get("FCCTL_EMULATOR_BOOT_ID")
    if emulated:
        return emulated
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    if boot:
        return boot
    from fcctl_remote.base.programs import run

    return run(["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], 5.0).out.strip()


def read_text(path: str, most_bytes: int = 100_000) -> str:
    """What a file of the system holds; empty if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(most_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def driver_models(folder: str = "/proc/driver/nvidia/gpus") -> list[str]:
    """The names of the GPUs that the loaded NVIDIA driver has, without starting a program."""
    if not os.path.isdir(folder):
        return []
    texts = [read_text(os.path.join(folder, name, "information")) for name in sorted(os.listdir(folder))]
    lines = [line.partition(":") for text in texts for line in text.split("\n")]
    return [value.strip() for key, _, value in lines if key.strip() == "Model"]


def user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def free_bytes(path: str) -> int:
    """Bytes this user may still write on the file system of ``path``; 0 if that cannot be told."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return 0
    return facts.f_bavail * facts.f_frsize


def brief() -> dict[str, Any]:
    """What every run records of its host, whether or not it probed the machine."""
    names = os.uname()
    return {
        "hostname": names.nodename,
        "platform": sys.platform,
        "release": names.release,
        "machine": names.machine,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "cpus": os.cpu_count() or 1,
        "boot_id": boot_id(),
    }
