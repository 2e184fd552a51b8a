"""A GPU machine as a cloud delivers it, made of files: its system below a folder, and programs that act on that folder.

Nothing of this computer changes: what ``hosts prepare`` would write to ``/etc`` goes below FCCTL_SYSTEM_ROOT, and
apt-get, modprobe, swapon and nvidia-smi are stand-ins. Each stand-in keeps its state as a file in ``state/``."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FirstBoot:
    """What is not ready yet when a new machine lets one in, counted in looks at it."""

    #: How often nvidia-smi still fails.
    driver_looks: int = 0
    #: The machine restarts when the driver is installed.
    reboot: bool = False
    #: A program of the system uses the GPU until the machine restarts.
    in_use: bool = False
    #: How often unattended upgrades still hold apt's lock.
    apt_looks: int = 0


#: A stock image whose driver is installed at the first boot.
TYPICAL = FirstBoot(driver_looks=2, reboot=True, apt_looks=2)

#: Where the image keeps what is no stand-in: sh's own tools.
_TOOL_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
#: Programs of this computer that the image lacks, or has a stand-in for.
_NOT_THERE = ("tmux", "rsync", "nvidia-smi", "ncu", "nvcc")

_PROGRAMS = {
    "nvidia-smi": """
looks=$(cat "$S/driver_looks")
if [ "$looks" -gt 0 ]; then
  echo $((looks - 1)) >"$S/driver_looks"
  if [ "$looks" = 1 ] && [ -e "$S/reboot" ]; then rm "$S/reboot"; reboot >/dev/null 2>&1; sleep 5; fi
  echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver." >&2; exit 9
fi
case "$*" in
  "-pm 1") echo Enabled >"$S/persistence" ;;
  *persistence_mode*) cat "$S/persistence" ;;
  *compute-apps*) cat "$S/gpu_users" ;;
  -L) echo "GPU 0: NVIDIA L4 (emulated)" ;;
  *) echo "this nvidia-smi is a stand-in" >&2; exit 6 ;;
esac""",
    "apt-get": """
looks=$(cat "$S/apt_looks")
if [ "$looks" -gt 0 ]; then
  echo $((looks - 1)) >"$S/apt_looks"
  echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (unattended-upgr)" >&2; exit 100
fi
for p in tmux rsync; do case " $* " in *" $p "*) cp -P "$S/packages/$p" "$B/$p" ;; esac; done""",
    "modprobe": """
params="$R/proc/driver/nvidia/params"
case "$*" in
  -r*) [ ! -s "$S/gpu_users" ] && [ ! -e "$S/gpu_in_use" ] || { echo "Module nvidia is in use." >&2; exit 1; }
    : >"$S/unloaded" ;;
  nvidia)
    [ -e "$S/unloaded" ] || exit 0
    rm "$S/unloaded"
    if grep -qs RestrictProfilingToAdminUsers=0 "$R"/etc/modprobe.d/*.conf; then
      echo "RmProfilingAdminOnly: 0" >"$params"
    fi ;;
esac""",
    "swapon": """echo "SwapTotal: $(($(wc -c <"$1") / 1024)) kB" >>"$R/proc/meminfo" """,
    "fallocate": """truncate -s "$2" "$3" """,
    "id": """[ "$*" = -u ] && { echo 1000; exit; }; exec /usr/bin/id "$@" """,
    "sudo": """
[ ! -e "$S/no_sudo" ] || { echo "sudo: a password is required" >&2; exit 1; }
kept=; while :; do case "$1" in -n) shift ;; -E) kept=1; shift ;; *) break ;; esac; done
[ -n "$kept" ] && exec env FCCTL_AS_ROOT=1 "$@"
exec env -i PATH="$PATH" FCCTL_AS_ROOT=1 "$@" """,
    "df": """printf 'Filesystem 1M-blocks Used Available\\n/dev/sda1 100000 40000 60000\\n' """,
}
#: Stand-ins that do nothing. An emulated instance has its own programs that end it, in front of these.
_NOTHING = (
    "update-initramfs", "mkswap", "swapoff", "shutdown", "poweroff", "halt", "reboot", "systemctl", "systemd-run",
)  # fmt: skip


def boot(folder: Path) -> None:
    """What a start of the machine changes: its driver reads its options again, and no program uses the GPU."""
    options = [path.read_text() for path in (folder / "system/etc/modprobe.d").glob("*.conf")]
    if any("RestrictProfilingToAdminUsers=0" in text for text in options):
        (folder / "system/proc/driver/nvidia/params").write_text("RmProfilingAdminOnly: 0\n")
    (folder / "state/gpu_in_use").unlink(missing_ok=True)


def make(folder: Path, first_boot: FirstBoot | None = None) -> tuple[Path, Path]:
    """Makes the image below ``folder``; boots it, if it is there. Returns its system's root, and the folder that
    stands in ``PATH`` in place of all others."""
    root, programs, state = folder / "system", folder / "bin", folder / "state"
    if state.exists():
        boot(folder)
    else:
        first = first_boot or FirstBoot()
        _system(root)
        programs.mkdir(parents=True)
        _tools(programs, state)
        for name, text in {**_PROGRAMS, **dict.fromkeys(_NOTHING, "exit 0")}.items():
            (programs / name).unlink(missing_ok=True)
            (programs / name).write_text(f'#!/bin/sh\nR="{root}" S="{state}" B="{programs}"\n{text.strip()}\n')
            (programs / name).chmod(0o755)
        counts = {"driver_looks": first.driver_looks, "apt_looks": first.apt_looks}
        files = {**counts, "persistence": "Disabled", "gpu_users": ""}
        for name, value in files.items():
            (state / name).write_text(f"{value}\n" if value != "" else "")
        for name, wanted in (("reboot", first.reboot), ("gpu_in_use", first.in_use)):
            if wanted:
                (state / name).touch()
    return root, programs


def _system(root: Path) -> None:
    files = {
        "proc/driver/nvidia/params": "RmProfilingAdminOnly: 1\n",
        "proc/meminfo": "MemTotal:       16384000 kB\nSwapTotal:             0 kB\n",
        "sys/bus/pci/devices/0000:00:03.0/vendor": "0x10de\n",
        "lib/systemd/system/apt-daily-upgrade.service": "",
        "etc/fstab": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "usr/local/cuda/bin").mkdir(parents=True)


def _tools(programs: Path, state: Path) -> None:
    """Links to this computer's programs; those of packages that are not installed stay aside."""
    (state / "packages").mkdir(parents=True)
    for folder in map(Path, _TOOL_FOLDERS):
        for path in folder.iterdir() if folder.is_dir() else ():
            place = state / "packages" if path.name in ("tmux", "rsync") else programs
            link = place / path.name
            if (path.name not in _NOT_THERE or place is not programs) and not link.is_symlink():
                link.symlink_to(path)
    for name in ("tmux", "rsync"):
        if shutil.which(name) is None:  # this computer lacks it, too
            (state / "packages" / name).symlink_to("/bin/true")
