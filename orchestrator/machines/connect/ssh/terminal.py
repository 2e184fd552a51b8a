"""OpenSSH for people: the commands that open a terminal on a machine, a run's tmux session or a shell; and entries of
the user's SSH configuration for cloud machines, by which plain ``ssh``, ``rsync`` and editors reach them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base import run_id as run_ids
from orchestrator.base.errors import ConfigError, HostUnreachable, NotFoundError
from orchestrator.base.files import disk_errors, make_folders, write_atomic
from orchestrator.machines.connect.bootstrap import shell_path
from orchestrator.machines.connect.ssh.config import home_is_elsewhere, of_target, user_config
from orchestrator.machines.provision.endpoint import key_alias
from orchestrator.machines.targets import CloudTarget, LocalTarget, SandboxTarget, SshTarget, Target

if TYPE_CHECKING:
    from orchestrator.machines.cache import FileMachineCache
    from orchestrator.machines.cloud import Endpoint

#: How long a login may take once connected, seconds.
_LOGIN_S = 10.0


@dataclass(frozen=True)
class PinnedMachine:
    """A cloud machine, with the file that holds its host keys."""

    endpoint: Endpoint
    known_hosts: Path
    connect_timeout_s: float


def pinned(
    target: CloudTarget | SandboxTarget,
    book: FileMachineCache,
    resolve: Callable[[CloudTarget | SandboxTarget], CloudTarget],
) -> PinnedMachine:
    """The cached endpoint of the target's machine. Raises HostUnreachable: there is none."""
    from orchestrator.machines.connect.ssh.ssh import not_known

    machine = resolve(target)
    endpoint = book.known(machine.project, machine.instance)
    if endpoint is None or not endpoint.host_keys:
        raise not_known(target.name)
    return PinnedMachine(endpoint, book.known_hosts(endpoint), machine.connect_timeout_s)


def attach_argv(target: Target, run_id: str, machine: PinnedMachine | None = None) -> list[str]:
    """What to exec to be in a run's tmux session: OpenSSH with a terminal, or tmux itself for ``local`` targets.

    OpenSSH gets the options of the target, so it logs in as the controller does and checks the same host key.

    Args:
        machine: the target's, if it is in a cloud.

    Raises NotFoundError: ``run_id`` is not a run id.
    """
    if not run_ids.is_valid(run_id):
        raise NotFoundError(f"'{run_id}' is not a run id", hint="fcctl ps")
    tmux = ["tmux", "attach", "-t", f"=fcctl-{run_id}"]
    if isinstance(target, LocalTarget):
        return tmux
    return [*_ssh(target, machine, terminal=True), shlex.join(tmux)]


def ssh_argv(
    target: Target, command: Sequence[str] = (), machine: PinnedMachine | None = None, *, on_terminal: bool = False
) -> list[str]:
    """What to exec for a shell on the target's machine, or for ``command`` there; words go to its shell as they are.
    The shell has what a run's steps have. Raises ConfigError: the target is this machine.

    Args:
        on_terminal: whether a person types.
    """
    if isinstance(target, LocalTarget):
        raise ConfigError(
            f"target '{target.name}' is this computer; no SSH is needed",
            hint=f"its runs are in {target.root}/runs; to see other machines: fcctl hosts ls",
        )
    if command:
        return [*_ssh(target, machine, terminal=False), *command]
    return [*_ssh(target, machine, terminal=on_terminal), _shell(target)]


def _shell(target: Target) -> str:
    """The host program's ``shell`` if it is there; on a machine that fcctl owns with a log of its GPU."""
    options = (" --gpu-log" if target.owned else "") + (" --python '$y'" if target.python else "")
    # Within a login shell, whose profile may set PATH anew.
    ours = f"$l -c \"exec '$h' shell{options}\""
    python = shell_path(target.python or "", "python")
    script = f'h={shell_path(target.root)}/bin/fcctl-host; y={python}; l="${{SHELL:-/bin/sh}} -l"'
    return "exec /bin/sh -c " + shlex.quote(f'{script}; if "$h" version >/dev/null 2>&1; then exec {ours}; fi; exec $l')


def compare_with_openssh(target: SshTarget, error: HostUnreachable) -> HostUnreachable:
    """``error``; if it is a refused login that OpenSSH does not meet, the error that says so."""
    if error.reason != "login":
        return error
    options = ("ClearAllForwardings=yes", "PermitLocalCommand=no", "RemoteCommand=none")
    batch = ["-o", "BatchMode=yes", "-o", "ControlPath=none", *(word for option in options for word in ("-o", option))]
    argv = ["ssh", "-nT", *batch, *_options(target), "--", target.host, "true"]
    nothing, limit_s = subprocess.DEVNULL, target.connect_timeout_s + _LOGIN_S
    try:
        done = subprocess.run(argv, stdin=nothing, stdout=nothing, stderr=nothing, timeout=limit_s, check=False)
    except (OSError, subprocess.SubprocessError):
        return error
    if done.returncode:
        return error
    return HostUnreachable(
        f"OpenSSH can log in to {target.host}, but fcctl cannot",
        reason="login",
        cause=f"{error.cause}; fcctl can use keys in files and in the ssh-agent, but not the Keychain and not Kerberos",
        hint=error.hint,
    )


def _ssh(
    target: SshTarget | CloudTarget | SandboxTarget, machine: PinnedMachine | None, *, terminal: bool
) -> list[str]:
    """OpenSSH up to and including the destination."""
    shell = ["ssh", "-t"] if terminal else ["ssh"]
    if isinstance(target, SshTarget):
        return [*shell, *_options(target), "--", target.host]
    if machine is None:
        raise ConfigError(
            f"target '{target.name}' is of kind {target.kind}, which needs a cloud, and none is configured here"
        )
    options = [word for name, value in pinned_values(machine).items() for word in ("-o", f"{name}={value}")]
    return [*shell, "-F", "none", *options, "--", machine.endpoint.address]


def _options(target: SshTarget) -> list[str]:
    options = user_config(target.ssh_config)
    for name, value in (("Port", target.port), ("User", target.user), ("IdentityFile", target.identity_file)):
        if value is not None:
            options += ["-o", f"{name}={_quoted(str(value))}"]
    if target.known_hosts:
        options += ["-o", f"UserKnownHostsFile={_quoted(target.known_hosts)}"]
    elif home_is_elsewhere():  # OpenSSH would take the files, and the keys, of the password file's home
        settings = of_target(target)
        options += ["-o", "UserKnownHostsFile=" + " ".join(_quoted(str(file)) for file in settings.known_hosts)]
        keys = [] if target.identity_file else [file for file in settings.identity_files if file.exists()]
        options += [word for file in keys for word in ("-o", f"IdentityFile={_quoted(str(file))}")]
    if target.proxy_jump:
        options += ["-J", target.proxy_jump]
    options += ["-o", f"ConnectTimeout={max(1, round(target.connect_timeout_s))}"]
    return [*options, "-o", "StrictHostKeyChecking=yes"]


def pinned_values(machine: PinnedMachine) -> dict[str, object]:
    """OpenSSH's options: only the pinned keys are trusted and only the machine's own key is offered."""
    endpoint = machine.endpoint
    values: dict[str, object] = {
        "Port": endpoint.port,
        "User": endpoint.user,
        "IdentityFile": _quoted(endpoint.identity_file.replace("%", "%%")),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": _quoted(str(machine.known_hosts).replace("%", "%%")),
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": key_alias(endpoint.instance_id),
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "StrictHostKeyChecking": "yes",
        "ServerAliveInterval": 30,
        "ConnectTimeout": max(1, round(machine.connect_timeout_s)),
    }
    if endpoint.proxy_command:
        values["ProxyCommand"] = shlex.join(endpoint.proxy_command).replace("%", "%%")
    return values


def _quoted(value: str) -> str:
    """A value of an ssh option: OpenSSH splits file names at blanks unless they are quoted."""
    return f'"{value}"' if " " in value else value


# ------------------------------------------------------------------------------------------- entries of ~/.ssh/config
_HEAD = "# Written by fcctl hosts ssh-config; an entry ends with its machine.\n"


def write_entry(name: str, values: Mapping[str, object]) -> Path:
    """Puts ``Host name`` with ``values`` into a file that ~/.ssh/config includes. Raises FcctlError."""
    config, ours, include = _ssh_files()
    with disk_errors("write the SSH configuration", config.parent):
        make_folders(config.parent, 0o700)
        _store(ours, {**_entries(ours), name: "".join(f"  {key} {value}\n" for key, value in values.items())})
        text = _text(config)
        if include not in text:  # in front: an Include within a Host block counts for that host alone
            _put(config, include + text)
    return config


def remove_entry(name: str) -> bool:
    """Removes the entry; with the last one the file and its Include go, too. Whether there was one."""
    config, ours, include = _ssh_files()
    entries = _entries(ours)
    if entries.pop(name, None) is None:
        return False
    with disk_errors("write the SSH configuration", config.parent):
        if entries:
            _store(ours, entries)
            return True
        if rest := _text(config).replace(include, ""):
            _put(config, rest)
        else:
            config.unlink(missing_ok=True)
        ours.unlink(missing_ok=True)
    return True


def _ssh_files() -> tuple[Path, Path, str]:
    """The user's configuration, fcctl's file beside it, and the line by which the one includes the other."""
    folder = Path.home() / ".ssh"
    ours = folder / "fcctl_config"
    return folder / "config", ours, f'Include "{ours}"\n'


def _put(path: Path, text: str) -> None:
    real = path.resolve()  # it may be a link into a folder of dotfiles
    write_atomic(real.parent, real.name, text.encode("utf-8", "surrogateescape"), mode=0o600)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""


def _entries(file: Path) -> dict[str, str]:
    parts = re.split(r"^Host (\S+)\n", _text(file), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _store(file: Path, entries: Mapping[str, str]) -> None:
    _put(file, _HEAD + "".join(f"Host {name}\n{body}" for name, body in entries.items()))
