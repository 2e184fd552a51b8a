"""The inside of an instance: its disk is a folder with a home and host keys, its system an sshd on loopback.

sshd runs as the emulator's user, which is the only login. Every session gets ``HOME`` on the disk, its own ``/tmp`` for
tmux, and programs on ``PATH`` that stop the instance in place of this computer: shutdown, poweroff, halt, reboot,
systemctl, systemd-run, and a sudo that runs them."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from fcctl_remote.base.processes import family
from orchestrator.base.installation import sshd_program
from orchestrator.emulator import power_command, processes

POWER_COMMANDS = ("shutdown", "poweroff", "halt", "reboot", "systemctl", "systemd-run")
HOST_KEY_KINDS = ("ed25519", "ecdsa")
#: A busy computer may take long to start an sshd, and to end one.
_LISTEN_LIMIT_S = 60.0
_END_LIMIT_S = 60.0
#: Attempts with another port: a free port may be taken before sshd listens.
_PORTS_TRIED = 5
_FREEZING_PASSES = 3

_LOGIN = """\
#!/bin/sh
export HOME={home} TMUX_TMPDIR={volatile} TMPDIR={volatile} FCCTL_EMULATOR_BOOT_ID={boot_id}
export FCCTL_SYSTEM_ROOT={system} PATH={path}
cd "$HOME" || exit 1
{record}
if [ -n "$SSH_ORIGINAL_COMMAND" ]; then exec "${{SHELL:-/bin/sh}}" -c "$SSH_ORIGINAL_COMMAND"; fi
exec "${{SHELL:-/bin/sh}}"
"""
_SUDO = """\
#!/bin/sh
# The user of an emulated instance may do without sudo what can be done at all.
while [ $# -gt 0 ]; do
  case "$1" in
    --) shift; break ;;
    -u|-g|-p) shift 2 ;;
    -v|-l) exit 0 ;;
    -*) shift ;;
    *=*) export "$1"; shift ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || exit 0
name=${1##*/}
if [ -x {programs}/"$name" ]; then shift; exec {programs}/"$name" "$@"; fi
exec "$@"
"""


class _PortTaken(Exception):
    """Another program listens there."""


class Guest:
    """A running instance. ``disk`` is its boot disk's folder."""

    def __init__(self, disk: Path, volatile: Path, port: int, path: Sequence[str] = ()) -> None:
        self.disk, self.volatile, self.port, self.path = disk, volatile, port, tuple(path)
        self._sshd: subprocess.Popen[bytes] | None = None
        self._is_frozen = False

    @classmethod
    def boot(
        cls,
        disk: Path,
        *,
        instance_id: str,
        port: int | None,
        url: str,
        token: str,
        path: Sequence[str] = (),
        make_disk: Callable[[Path], object] | None = None,
        announce: Callable[[Path], None] = lambda _: None,
    ) -> Guest:
        """Start sshd; nobody can log in before :meth:`authorize`.

        Args:
            port: the one it had before, taken again if it is free.
            url: where the guest asks for its power to be cut, with ``token``.
            path: folders that come before the usual ones in ``PATH``.
            make_disk: makes what is on the disk: programs in ``bin``, the system below ``system``.
            announce: told the folder of this boot before anything is started.

        Raises OSError: sshd does not run here.
        """
        prepare_disk(disk, instance_id, make_disk)
        # Short, because tmux puts a Unix socket below it and those have a limit of about 100 bytes.
        volatile = Path(tempfile.mkdtemp(prefix="fce", dir="/tmp"))
        announce(volatile)
        guest = cls(disk, volatile, free_port(port), path)
        guest._write_programs(url, token, str(uuid.uuid4()))
        guest._listen()
        return guest

    @property
    def home(self) -> Path:
        return self.disk / "home"

    def authorize(self, keys: list[str]) -> None:
        """Replace the keys that may log in; from the next login on."""
        fresh = self.volatile / "authorized_keys.new"
        fresh.write_text("".join(f"{key}\n" for key in keys))
        fresh.replace(self.volatile / "authorized_keys")

    def _write_programs(self, url: str, token: str, boot_id: str) -> None:
        programs = self.volatile / "bin"
        programs.mkdir()
        endpoint = self.volatile / "endpoint.json"
        endpoint.write_text(json.dumps({"url": url, "token": token}))
        endpoint.chmod(0o600)
        argv = shlex.join([sys.executable, "-IS", str(Path(power_command.__file__).resolve()), str(endpoint)])
        for name in POWER_COMMANDS:
            _program(programs / name, f'#!/bin/sh\nexec {argv} {name} "$@"\n')
        quoted = shlex.quote(str(programs))
        _program(programs / "sudo", _SUDO.replace("{programs}", quoted))
        stock = self.disk / "bin"
        path = shlex.quote(":".join([str(programs), *self.path, *([str(stock)] if stock.exists() else [])]))
        values = {"home": self.home, "volatile": self.volatile, "boot_id": boot_id, "system": self.disk / "system"}
        quoted_values = {key: shlex.quote(str(value)) for key, value in values.items()}
        # sshd has made this shell's process group and session; macOS tells both by one number.
        sessions = shlex.quote(str(self.volatile / processes.SESSIONS))
        record = f"ps -o pgid= -p $$ >> {sessions}" if sys.platform != "linux" else ""
        path += "" if stock.exists() else ':"$PATH"'
        _program(self.volatile / "login", _LOGIN.format(path=path, record=record, **quoted_values))
        self.authorize([])

    def _listen(self) -> None:
        """Start sshd, on another port if somebody takes its own."""
        try:
            for _ in range(_PORTS_TRIED - 1):
                with contextlib.suppress(_PortTaken):
                    return self._start_sshd()
                self.port = free_port(None)
            return self._start_sshd()
        except _PortTaken:
            self.power_off()
            raise OSError("other programs took every port of 127.0.0.1 that fcctl chose for sshd") from None

    def _start_sshd(self) -> None:
        """Raises: OSError, if it does not run; _PortTaken."""
        program = sshd_program()
        if program is None:
            raise OSError("sshd is not installed (Ubuntu: sudo apt install openssh-server)")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd, started as root, drops its privileges
        config = self.volatile / "sshd_config"
        config.write_text("\n".join(self._directives()) + "\n")
        log = self.volatile / "sshd.log"
        environment = {"HOME": str(self.home), "PATH": os.environ.get("PATH", os.defpath)}
        with log.open("wb") as stream:
            self._sshd = subprocess.Popen(
                [program, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment, start_new_session=True,
            )  # fmt: skip
        limit = time.monotonic() + _LISTEN_LIMIT_S
        # From its log: another program might answer on the port.
        while f"Server listening on 127.0.0.1 port {self.port}." not in log.read_text(errors="replace"):
            ended = self._sshd.poll() is not None
            if ended or time.monotonic() > limit:
                text = log.read_text(errors="replace")
                if ended and "Address already in use" in text:
                    self._sshd = None
                    raise _PortTaken
                self.power_off()
                raise OSError(f"sshd does not listen on port {self.port}: {text.strip()[-500:]}")
            time.sleep(0.005)

    def _directives(self) -> list[str]:
        subsystem = next((p for p in ("/usr/lib/openssh/sftp-server", "/usr/libexec/sftp-server") if Path(p).exists()),
                         "internal-sftp")  # fmt: skip
        return [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            *(f'HostKey "{self.disk}/etc/ssh_host_{kind}_key"' for kind in HOST_KEY_KINDS),
            f"AuthorizedKeysFile {self.volatile}/authorized_keys",
            # So that the shell reads no .bashrc of this computer's user.
            f'SetEnv "HOME={self.home}"',
            f"ForceCommand {self.volatile}/login",
            f"Subsystem sftp {subsystem}",
            "PidFile none",
            "StrictModes no",
            f"UsePAM {'yes' if _locked() else 'no'}",  # which leaves it to PAM whether a locked account may come in
            "UseDNS no",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PrintMotd no",
            "PrintLastLog no",
            "LogLevel INFO",
            "MaxStartups 100",
            "MaxSessions 100",
        ]

    # ---------------------------------------------------------------------------------------------------- power
    def shut_down(self) -> None:
        """Shuts the system down: no new logins, and SIGTERM for everything.

        Sessions end first, so that they do not see the end of other processes, whatever the load of this computer.
        A suspended system gets no signal. Its SSH sessions can be found only as children of the listening sshd, so that
        is kept until :meth:`power_off` kills them all.
        """
        if self._is_frozen:
            return
        sessions = self._tree() - ({self._sshd.pid} if self._sshd else set())
        self._end_listener()
        processes.send_all(sessions, signal.SIGTERM)
        processes.send_all(self._processes() - sessions, signal.SIGTERM)

    def power_off(self) -> None:
        """Kills everything and deletes what is not on the disk."""
        tree = self._tree()
        self._end_listener()
        processes.end(self.home, tree, self.volatile)
        shutil.rmtree(self.volatile, ignore_errors=True)

    def freeze(self) -> None:
        """Suspends all processes; connections stay open.

        Repeated, because processes may be starting, and a running tmux continues its stopped panes.
        """
        self._is_frozen = True
        for _ in range(_FREEZING_PASSES):
            processes.send_all(self._tree() | self._processes(), signal.SIGSTOP)

    def thaw(self) -> None:
        self._is_frozen = False
        processes.send_all(self._tree() | self._processes(), signal.SIGCONT)

    def _processes(self) -> set[int]:
        return processes.of_home(self.home, processes.sessions_of(self.volatile))

    def _tree(self) -> set[int]:
        return {self._sshd.pid} | family(ancestor=self._sshd.pid) if self._sshd else set()

    def _end_listener(self) -> None:
        if self._sshd is not None:
            self._sshd.kill()
            self._sshd.wait(_END_LIMIT_S)
            self._sshd = None


def login_name() -> str:
    """The only user an instance knows."""
    return pwd.getpwuid(os.getuid()).pw_name


def _locked() -> bool:
    """Whether sshd would refuse this user because the account has no password, as root on many systems."""
    try:
        lines = Path("/etc/shadow").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False  # then sshd, which runs as this user too, cannot tell either
    return any(line.startswith(f"{login_name()}:!") for line in lines)


def prepare_disk(disk: Path, instance_id: str, make_disk: Callable[[Path], object] | None = None) -> None:
    """Creates what a disk lacks. In another instance a disk gets new host keys, as real images do."""
    if make_disk is not None:
        make_disk(disk)
    elif not (disk / "bin").exists():  # what hosts prepare would do there, it would do to this computer
        (disk / "system/etc").mkdir(parents=True, exist_ok=True)
        (disk / "system/etc/fcctl-prepared").touch()
    (disk / "home").mkdir(parents=True, exist_ok=True, mode=0o700)
    etc = disk / "etc"
    etc.mkdir(exist_ok=True)
    owner = etc / "instance_id"
    if owner.exists() and owner.read_text() == instance_id:
        return
    new_host_keys(disk)
    owner.write_text(instance_id)


def new_host_keys(disk: Path) -> None:
    for kind in HOST_KEY_KINDS:
        new_key_pair(disk / "etc" / f"ssh_host_{kind}_key", kind)


def new_key_pair(path: Path, kind: str) -> None:
    """A private key of one of :data:`HOST_KEY_KINDS` at ``path`` and its public key at ``path.pub``, as ssh-keygen
    writes them, in a tenth of its time."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    key = ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())
    openssh = serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(private)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")


def host_keys(disk: Path) -> dict[str, str]:
    """Key type (``ssh-ed25519``) -> base64 key, as guest attributes publish them."""
    keys = {}
    for kind in HOST_KEY_KINDS:
        name, blob = (disk / "etc" / f"ssh_host_{kind}_key.pub").read_text().split()[:2]
        keys[name] = blob
    return keys


def end_orphan(disk: Path, volatile: str | None) -> None:
    """Kills the processes of an instance of a dead emulator."""
    if volatile and Path(volatile).name.startswith("fce"):
        processes.end_boot(Path(volatile))
        shutil.rmtree(volatile, ignore_errors=True)
    processes.end(disk / "home")


def free_port(wished: int | None) -> int:
    """``wished`` if it is free, else any other."""
    for port in (wished or 0, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o700)
