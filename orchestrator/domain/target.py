"""Targets: the machines a run can go to, as ``[targets.NAME]`` of fcctl.toml describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=24)]

#: Never taken for an option by a program that gets it as an argument, and never more than one word.
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_:\[][A-Za-z0-9._:%\[\]-]*$", max_length=255)]


class _TargetBase(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: Name
    #: Where the host program keeps its runner, trees and runs.
    root: str = "~/.fcctl"
    #: A Python >= 3.8 for the host program, where ``python3`` is not one.
    python: str | None = None
    #: Silence on the link for this long means it is dead.
    link_timeout_s: Annotated[float, Field(ge=2, le=600)] = 20.0
    #: How long to go on reconnecting before a run is left detached.
    reconnect_s: Annotated[float, Field(ge=0)] = 600.0
    #: Added to every step's environment.
    env: dict[str, str] = {}
    #: Whether fcctl may power the machine off (fence 2). A dry lease is kept otherwise.
    owned: bool = False
    #: What an hour of the machine costs; ``[budget] usd_per_hour`` stands in where a billed machine names none.
    usd_per_hour: Annotated[float, Field(ge=0)] | None = None


class LocalTarget(_TargetBase):
    """This machine: the same path as over SSH, without the SSH."""

    kind: Literal["local"] = "local"


class SshTarget(_TargetBase):
    """A machine reachable over SSH; ``host`` is a name, an address or an alias of ~/.ssh/config."""

    kind: Literal["ssh"] = "ssh"
    host: HostName
    user: Annotated[str, Field(pattern=r"^[^-@\s][^@\s]*$")] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity_file: str | None = None
    #: ``a`` or ``user@a:port,b``, as ssh's -J; ProxyJump and ProxyCommand of ~/.ssh/config are honoured too.
    proxy_jump: str | None = None
    #: Another file than ~/.ssh/config.
    ssh_config: str | None = None
    #: Another file than ~/.ssh/known_hosts.
    known_hosts: str | None = None
    connect_timeout_s: Annotated[float, Field(gt=0, le=300)] = 15.0


class GcpTarget(_TargetBase):
    """A Compute Engine instance that fcctl finds, wakes or creates."""

    kind: Literal["gcp"] = "gcp"
    project: str
    instance: str
    zones: Annotated[list[str], Field(min_length=1)]
    machine_type: str = "g2-standard-4"
    owned: bool = True


class SandboxTarget(_TargetBase):
    """The built-in emulator with one stopped L4-like machine."""

    kind: Literal["sandbox"] = "sandbox"


Target = Annotated[LocalTarget | SshTarget | GcpTarget | SandboxTarget, Field(discriminator="kind")]
