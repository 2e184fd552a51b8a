"""``fcctl doctor``: checks this machine, the workspace and a target; one fix for each problem."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator.base.errors import FcctlError, plural
from orchestrator.base.git import GitFailed, run_git
from orchestrator.base.installation import Finding, Status, install_command, sshd_program
from orchestrator.machines.connect.reconnect import mended
from orchestrator.machines.connect.ssh.config import host_key
from orchestrator.machines.interfaces import HostConnector
from orchestrator.machines.targets import LocalTarget, SandboxTarget, SshTarget, Target

_LOW_DISK_BYTES = 2 * 1024**3
_CLOCK_SKEW_S = 30.0
_PROBE_TIMEOUT_S = 10.0


def check_programs(*, runs_here: bool) -> Iterator[Finding]:
    """What this machine needs. ``runs_here``: runs are to go to ``local``, which makes tmux a must."""
    yield Finding("this computer", "python", "ok", f"Python {platform.python_version()}")
    for name, option, missing, why in _PROGRAMS:
        path = shutil.which(name)
        text = _output([path, option]) if path else None
        if text is None:
            status: Status = "fail" if name == "tmux" and runs_here else missing
            message = f"{path} cannot be started" if path else f"{name} is not installed: {why}"
            yield Finding("this computer", name, status, message, install_command(name))
        else:
            first = next((line.strip() for line in text.splitlines() if line.strip()), "")
            yield Finding("this computer", name, "ok", _rsync(path, text) if name == "rsync" else first)


#: What fcctl calls on this computer, how it says its version, and what it is without one.
_PROGRAMS: tuple[tuple[str, str, Status, str], ...] = (
    ("git", "--version", "fail", "it tells which files are sent, and of which commit"),
    ("ssh", "-V", "warn", "needed by fcctl attach --tmux"),
    ("rsync", "--version", "warn", "fcctl sends whole files instead of differences"),
    ("tmux", "-V", "warn", "runs on the target 'local' need it"),
)


def _rsync(path: str | None, text: str) -> str:
    version = re.search(r"rsync\s+version\s+v?(\S+)", text)
    kind = f"openrsync at {path}, used as rsync" if "openrsync" in text else "GNU rsync"
    return f"{kind} {version[1] if version else ''}".rstrip()


def check_jobs(problems: dict[str, list[str]]) -> Iterator[Finding]:
    """``problems``: job name -> what is wrong with its file, each with its line."""
    for name, texts in problems.items():
        for problem in texts:
            yield Finding("workspace", f"job {name}", "fail", problem, f"fcctl jobs validate {name}")
    wrong = sum(bool(texts) for texts in problems.values())
    if not wrong:
        yield Finding("workspace", "jobs", "ok", f"{plural(len(problems), 'job')} checked, all valid")


def check_git(root: Path) -> Finding:
    """Whether git knows the workspace, so that runs name a commit."""
    try:
        run_git(root, "rev-parse", "--is-inside-work-tree", timeout_s=_PROBE_TIMEOUT_S)
    except GitFailed:
        why = "the workspace is not in a git repository: .gitignore still counts, but runs name no commit"
        return Finding("workspace", "git", "warn", why, shlex.join(["git", "-C", str(root), "init"]))
    return Finding("workspace", "git", "ok", "the workspace is in a git repository")


def check_results(folder: Path) -> Finding:
    """Whether runs can be kept: the results folder, or the place where it will be made, is writable."""
    place = next(p for p in (folder, *folder.parents) if p.exists())
    if os.access(place, os.W_OK | os.X_OK):
        return Finding("workspace", "results", "ok", f"{folder} is writable")
    return Finding(
        "workspace", "results", "fail", f"{place} is not writable: results cannot be stored", f"ls -ld {place}"
    )


def check_known_hosts(targets: Iterable[Target]) -> Iterator[Finding]:
    """Whether the host key of each ssh target is known, so that the first run is not refused."""
    for target in targets:
        if isinstance(target, SshTarget):
            yield _known_host(target)


def _known_host(target: SshTarget) -> Finding:
    try:
        entry, known = host_key(target)
    except FcctlError as error:
        return _failed("targets", target.name, error)
    if known:
        return Finding("targets", target.name, "ok", f"host key of {entry} is known")
    config = ["-F", target.ssh_config] if target.ssh_config else []
    port = ["-p", str(target.port)] if target.port else []
    reach = shlex.join(["ssh", *config, *port, *(["-l", target.user] if target.user else []), target.host, "true"])
    why = f"unknown host key of {entry}: log in once and compare its fingerprint"
    return Finding("targets", target.name, "warn", why, reach)


def check_target(target: Target, hosts: HostConnector, now: Callable[[], float]) -> Iterator[Finding]:
    """Logs in, starts the host program, and checks what it reports of the machine."""
    section = f"target {target.name}"
    try:
        session = hosts.connect(target)
    except FcctlError as error:
        yield _failed(section, "reachable", error)
        return
    try:
        hello, here = session.hello, now()
    finally:
        session.close()
    yield Finding(section, "reachable", "ok", f"{hello.user}@{hello.hostname}, {hello.platform}, Python {hello.python}")
    if hello.mended:
        fix = "nothing to do; if this happens again, its disk may be failing: look for I/O errors in dmesg there"
        yield Finding(section, "host program", "warn", mended(hello), fix)
    for tool, use in (("tmux", "runs need it"), ("bash", "steps are bash scripts")):
        if not hello.tools.get(tool):
            fix = f"install {tool} there" if not isinstance(target, LocalTarget) else install_command(tool)
            yield Finding(section, tool, "fail", f"{tool} is not installed there: {use}", fix)
    if not hello.tools.get("rsync") and not isinstance(target, LocalTarget):
        why = "rsync is not installed there: fcctl sends whole files instead of differences"
        yield Finding(section, "rsync", "warn", why, "install rsync there")
    gib = hello.free_bytes / 1024**3
    full = hello.free_bytes < _LOW_DISK_BYTES
    fix = f"free disk space below {hello.root} there"
    yield Finding(section, "disk", "warn" if full else "ok", f"{gib:.1f} GiB free", fix if full else None)
    skew = hello.time - here
    if abs(skew) > _CLOCK_SKEW_S:
        fix = "set its clock: sudo timedatectl set-ntp true"
        yield Finding(section, "clock", "warn", f"its clock differs by {skew:+.0f} s from this computer's", fix)


def _failed(section: str, name: str, error: FcctlError) -> Finding:
    return Finding(section, name, "fail", error.one_line, error.hint)


def check_sandbox(target: SandboxTarget) -> Iterator[Finding]:
    """What the sandbox's machine is made of."""
    program = sshd_program()
    why = program or "sshd is not installed on this computer: the sandbox needs it"
    fix = None if program else install_command("openssh-server")
    yield Finding(f"target {target.name}", "sshd", "ok" if program else "fail", why, fix)


def _output(argv: Sequence[str]) -> str | None:
    """What a program prints, on either stream; None if it cannot be run, fails, or hangs."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
