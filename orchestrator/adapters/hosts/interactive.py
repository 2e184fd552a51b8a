"""The command that puts a person's terminal into a run's tmux session."""

from __future__ import annotations

import shlex

from orchestrator.adapters.hosts.ssh_config import user_config
from orchestrator.domain import run_id as run_ids
from orchestrator.domain.target import LocalTarget, SshTarget, Target
from orchestrator.errors import ConfigError, NotFoundError


def attach_argv(target: Target, run_id: str) -> list[str]:
    """What to exec: OpenSSH with a terminal for ``ssh`` targets, tmux itself for ``local`` ones.

    OpenSSH gets the options of the target, so it logs in as the controller does and checks the same host key.

    Raises:
        NotFoundError: ``run_id`` is no run id.
        ConfigError: the target has no machine to attach to.
    """
    if not run_ids.is_valid(run_id):
        raise NotFoundError(f"'{run_id}' is no run id", hint="fcctl ps")
    tmux = ["tmux", "attach", "-t", f"=fcctl-{run_id}"]
    if isinstance(target, LocalTarget):
        return tmux
    if not isinstance(target, SshTarget):
        raise ConfigError(f"target '{target.name}' of kind {target.kind} has no terminal to attach to")
    options = user_config(target.ssh_config)
    for name, value in (("Port", target.port), ("User", target.user), ("IdentityFile", target.identity_file)):
        if value is not None:
            options += ["-o", f"{name}={_quoted(str(value))}"]
    if target.known_hosts:
        options += ["-o", f"UserKnownHostsFile={_quoted(target.known_hosts)}"]
    if target.proxy_jump:
        options += ["-J", target.proxy_jump]
    options += ["-o", f"ConnectTimeout={max(1, round(target.connect_timeout_s))}"]
    options += ["-o", "StrictHostKeyChecking=yes"]
    return ["ssh", "-t", *options, "--", target.host, shlex.join(tmux)]


def _quoted(value: str) -> str:
    """A value of an ssh option: OpenSSH splits file names at blanks unless they are quoted."""
    return f'"{value}"' if " " in value else value
