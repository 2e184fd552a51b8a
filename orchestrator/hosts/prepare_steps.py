"""The steps that make a machine fit for GPU work, as POSIX shell: what each looks for, and what it changes.

``check`` prints what it finds and ends with 0 (as it should be), :data:`MISSING` or :data:`NOT_HERE`. ``change`` prints
what it did and ends with 0, with :data:`AT_REBOOT` if that takes effect with the next start of the machine, or with
:data:`BUSY` if it must be tried again.
"""

from __future__ import annotations

from dataclasses import dataclass

from fcctl_remote.base.hostfacts import PREPARED_FILE

MISSING, NOT_HERE, AT_REBOOT, BUSY = 10, 11, 12, 13

#: Before each script. FCCTL_SYSTEM_ROOT is the folder that an emulated machine has in place of ``/``.
PRELUDE = f"""
R=${{FCCTL_SYSTEM_ROOT-}}; S=; [ "$(id -u)" = 0 ] || S="sudo -n"
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
put() {{ $S mkdir -p "${{1%/*}}" && $S tee "$1" >/dev/null; }}
holds() {{ printf '%s\\n' "$2" | cmp -s - "$1"; }}
has() {{ command -v "$1" >/dev/null 2>&1; }}
missing() {{ echo "$*"; exit {MISSING}; }}
not_here() {{ echo "$*"; exit {NOT_HERE}; }}
"""


@dataclass(frozen=True)
class PrepareStep:
    id: str
    title: str
    check: str
    change: str
    #: What a change may take, seconds.
    limit_s: float = 60.0


_PACKAGES = PrepareStep(
    "packages",
    "tmux and rsync",
    """
lacking=; for p in tmux rsync; do has $p || lacking="$lacking $p"; done
[ -z "$lacking" ] || missing "not installed:$lacking"
echo installed""",
    """
has apt-get || { echo "apt-get is not installed; install tmux and rsync yourself" >&2; exit 1; }
apt() { errors=$($S env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" 2>&1 >/dev/null); }
install() { apt install tmux rsync || { apt update && apt install tmux rsync; }; }
if ! install; then
  echo "$errors" | tail -1 >&2
  case "$errors" in *"Could not get lock"*) echo "unattended upgrades hold the apt lock; waiting"; exit 13 ;; esac
  exit 1
fi
echo "installed tmux and rsync" """,
    limit_s=420.0,
)

_OPTION = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
_COUNTERS = PrepareStep(
    "counters",
    "GPU performance counters for all users",
    """
p="$R/proc/driver/nvidia/params"; [ -r "$p" ] || not_here "no NVIDIA driver is loaded"
grep -q 'RmProfilingAdminOnly: *1' "$p" || { echo "all users may read them"; exit 0; }
missing "only administrators may read them" """,
    f"""
echo '{_OPTION}' | put "$R/etc/modprobe.d/fcctl-nvidia.conf" || exit 1
if has update-initramfs; then $S update-initramfs -u >/dev/null 2>&1; fi
users=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | head -1)
if [ -z "$users" ]; then
  if has systemctl; then $S systemctl stop nvidia-persistenced >/dev/null 2>&1; fi
  $S modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia >/dev/null 2>&1
  $S modprobe nvidia >/dev/null 2>&1; $S modprobe nvidia_uvm >/dev/null 2>&1
  if has systemctl; then $S systemctl start nvidia-persistenced >/dev/null 2>&1; fi
fi
if grep -q 'RmProfilingAdminOnly: *0' "$R/proc/driver/nvidia/params"; then
  echo "set, and the driver was reloaded"; exit 0
fi
echo "set in /etc/modprobe.d; a process uses the driver, so it takes effect after a reboot"; exit {AT_REBOOT}""",
    limit_s=240.0,
)

_PERSISTENCE = PrepareStep(
    "persistence",
    "GPU persistence mode",
    """
has nvidia-smi || not_here "nvidia-smi is not installed"
modes=$(nvidia-smi --query-gpu=persistence_mode --format=csv,noheader 2>/dev/null) || not_here "nvidia-smi fails"
case "$modes" in *Disabled*) missing off ;; *Enabled*) echo on ;; *) not_here "the GPU does not support it" ;; esac""",
    """
$S nvidia-smi -pm 1 >/dev/null || exit 1
if has systemctl; then $S systemctl enable nvidia-persistenced >/dev/null 2>&1; fi
echo "switched on" """,
)

_PROFILE = """# By fcctl hosts prepare: CUDA programs for login shells.
if [ -d /usr/local/cuda/bin ]; then
  export CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}"
  case ":$PATH:" in *":$CUDA_HOME/bin:"*) ;; *) PATH="$CUDA_HOME/bin:$PATH" ;; esac
fi"""
_CUDA = PrepareStep(
    "cuda",
    "CUDA in login shells",
    f"""
[ -d "$R/usr/local/cuda" ] || not_here "/usr/local/cuda does not exist"
holds "$R/etc/profile.d/fcctl-cuda.sh" '{_PROFILE}' || missing "not on the PATH of login shells"
echo "in /etc/profile.d" """,
    f"""
printf '%s\\n' '{_PROFILE}' | put "$R/etc/profile.d/fcctl-cuda.sh" || exit 1
echo "written to /etc/profile.d/fcctl-cuda.sh" """,
)

#: Memory and swap together that eight nvcc processes and a torch extension need, MiB.
BUILD_MIB = 24 * 1024
_SWAP = PrepareStep(
    "swap",
    "memory for large builds",
    f"""
[ -r "$R/proc/meminfo" ] || not_here "the size of the memory is unknown"
mib=$(awk '/^(MemTotal|SwapTotal):/ {{ k += $2 }} END {{ print int(k / 1024) }}' "$R/proc/meminfo")
[ "$mib" -lt {BUILD_MIB} ] || {{ echo "$mib MiB with swap"; exit 0; }}
need=$(( {BUILD_MIB} - mib )); free=$(df -Pm "$R/" | awk 'NR == 2 {{ print $4 }}')
[ "$free" -gt $(( need * 2 )) ] || not_here "$mib MiB with swap, and the disk is too full for more swap"
missing "$mib MiB with swap, less than {BUILD_MIB} MiB" """,
    f"""
f="$R/swapfile-fcctl"
mib=$(awk '/^(MemTotal|SwapTotal):/ {{ k += $2 }} END {{ print int(k / 1024) }}' "$R/proc/meminfo")
need=$(( {BUILD_MIB} - mib )); $S swapoff "$f" >/dev/null 2>&1
$S fallocate -l "${{need}}M" "$f" && $S chmod 600 "$f" && $S mkswap "$f" >/dev/null && $S swapon "$f" || exit 1
grep -q '^/swapfile-fcctl ' "$R/etc/fstab" 2>/dev/null ||
  echo '/swapfile-fcctl none swap sw 0 0' | $S tee -a "$R/etc/fstab" >/dev/null || exit 1
echo "$need MiB of swap in /swapfile-fcctl" """,
)

_FREE = """#!/bin/sh
# By fcctl hosts prepare: whether no run has the machine. A run holds a lock on its ticket.
for ticket in $HOME_OF_RUNS/locks/queue/*; do
  [ ! -f "$ticket" ] || flock -n "$ticket" true || exit 1
done"""
_UPGRADES = PrepareStep(
    "upgrades",
    "no upgrades during a run",
    """
[ -e "$R/lib/systemd/system/apt-daily-upgrade.service" ] || not_here "unattended upgrades are not installed"
[ -x "$R/usr/local/lib/fcctl/is-free" ] || missing "unattended upgrades may start during a run"
for s in apt-daily apt-daily-upgrade; do
  [ -f "$R/etc/systemd/system/$s.service.d/fcctl.conf" ] || missing "unattended upgrades may start during a run"
done
echo "unattended upgrades wait until a run has ended" """,
    f"""
printf '%s\\n' '{_FREE}' | sed "s#\\$HOME_OF_RUNS#$FCCTL_ROOT#" | put "$R/usr/local/lib/fcctl/is-free" || exit 1
$S chmod 755 "$R/usr/local/lib/fcctl/is-free"
for s in apt-daily apt-daily-upgrade; do
  unit="$R/etc/systemd/system/$s.service.d/fcctl.conf"
  printf '[Service]\\nExecCondition=/usr/local/lib/fcctl/is-free\\n' | put "$unit" || exit 1
done
if has systemctl; then $S systemctl daemon-reload >/dev/null 2>&1; fi
echo "unattended upgrades wait until a run has ended" """,
)

STEPS = (_PACKAGES, _COUNTERS, _PERSISTENCE, _CUDA, _SWAP, _UPGRADES)

#: Whether the login may act as root.
MAY_BE_ROOT = '[ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null'
#: Whether no run has the machine, as far as that can be told.
IS_FREE = """
has flock || exit 0
for ticket in "$FCCTL_ROOT"/locks/queue/*; do [ ! -f "$ticket" ] || flock -n "$ticket" true || exit 1; done"""
#: Whether the driver works, or there is no NVIDIA GPU on the bus: on its first boot a machine may still install it.
HAS_DRIVER = """
grep -qs 0x10de "$R"/sys/bus/pci/devices/*/vendor || exit 0
nvidia-smi -L >/dev/null 2>&1"""
MARK = f'date -u +%Y-%m-%dT%H:%M:%SZ | put "$R{PREPARED_FILE}"'
BOOT_ID = "echo ${FCCTL_EMULATOR_BOOT_ID:-$(cat /proc/sys/kernel/random/boot_id)}"
REBOOT = "$S systemctl reboot >/dev/null 2>&1 || $S reboot"
