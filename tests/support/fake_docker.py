#!/usr/bin/env python3
"""``docker`` for tests: a client, and a daemon that is no relative of it and runs "containers" as plain processes.

A container has the image's PATH and the variables that were named, and nothing of the client's environment. The daemon
refuses what docker would: a folder that is not there, another user, an image that it has not. ``DOCKER_STATE`` is its
folder: socket, ``calls`` (one JSON list a line) and ``refuse`` (what ``docker version`` complains of).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STATE = Path(os.environ["DOCKER_STATE"])
IMAGE = "repo.example/cuda:12.9"
NAMES = ["name", "label", "user", "network", "ipc", "gpus", "volume", "env", "workdir", "entrypoint"]
WITH_VALUE = [f"--{name}" for name in NAMES]
containers: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}


# ------------------------------------------------------------------------------------------------ the daemon
def serve() -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(STATE / "socket"))
    server.listen()
    print("up", flush=True)
    while True:
        client, _ = server.accept()
        threading.Thread(target=answer, args=(client,), daemon=True).start()


def answer(client: socket.socket) -> None:
    data, fds, _, _ = socket.recv_fds(client, 1 << 20, 2)
    request = json.loads(data)
    with contextlib.ExitStack() as stack:
        stack.callback(client.close)
        for fd in fds:
            stack.callback(os.close, fd)
        reply: Any = {"run": run, "rm": remove, "ps": listed}[request["verb"]](request, client, fds)
        with contextlib.suppress(OSError):  # the client is gone
            client.sendall(json.dumps(reply).encode())


def run(request: dict[str, Any], client: socket.socket, fds: list[int]) -> int:
    options: dict[str, list[str]] = request["options"]
    env = {"PATH": str(STATE / "image/bin"), **request["env"]}
    process = subprocess.Popen(
        [*options["--entrypoint"], *request["argv"]], env=env, cwd=options.get("--workdir", ["/"])[0],
        stdin=subprocess.DEVNULL, stdout=fds[0], stderr=fds[1], start_new_session=True,
    )  # fmt: skip
    name = options.get("--name", ["unnamed"])[0]
    containers[name] = (options.get("--label", [""])[0], process)
    threading.Thread(target=forward, args=(client, process), daemon=True).start()
    code = process.wait()
    end(name, process.pid)  # the end of its first process is a container's
    containers.pop(name, None)
    return 128 - code if code < 0 else code


def forward(client: socket.socket, process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):
        while number := client.recv(1):
            process.send_signal(number[0])


def remove(request: dict[str, Any], *_: Any) -> int:
    for name in request["argv"]:
        process = containers[name][1]
        process.kill()
        end(name, process.pid)
        containers.pop(name, None)
    return 0


def end(name: str, group: int) -> None:
    """Kill a container's processes until none is left, as the end of a PID namespace does: one that is signalled, or
    has begun another, may run on for a while on a busy computer."""
    while left := list(members(name, group)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def members(name: str, group: int) -> Iterator[int]:
    """Its living processes: those of its first one's group, and those elsewhere by their environment, which cannot be
    read while a program replaces another."""
    family = f"FCCTL_CONTAINER={name}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, its_group = (place / "stat").read_text().rpartition(")")[2].split()[:3]
            alive = state not in ("Z", "X")
            if alive and (int(its_group) == group or family in (place / "environ").read_bytes().split(b"\0")):
                yield int(place.name)


def listed(request: dict[str, Any], *_: Any) -> list[str]:
    return [name for name, (label, _) in list(containers.items()) if f"label={label}" == request["argv"][-1]]


# ------------------------------------------------------------------------------------------------ the client
def ask(request: dict[str, Any]) -> Any:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
        daemon.connect(str(STATE / "socket"))
        socket.send_fds(daemon, [json.dumps(request).encode()], [1, 2])
        signal.signal(signal.SIGTERM, lambda *_: daemon.sendall(bytes([signal.SIGTERM])))
        return json.loads(daemon.recv(1 << 20) or b"125")


def start(words: list[str]) -> int:
    options: dict[str, list[str]] = {}
    while words[0].startswith("--"):
        word = words.pop(0)
        options.setdefault(word, []).extend([words.pop(0)] if word in WITH_VALUE else [])
    if words.pop(0) != IMAGE:
        return complain("Unable to find image locally", 125)
    for volume in options.get("--volume", []):
        if not os.path.exists(volume.split(":")[0]):
            return complain(f"{volume} is not there", 125)
    if "--user" in options and options["--user"] != [f"{os.getuid()}:{os.getgid()}"]:
        return complain("another user", 125)
    env = {name: os.environ[name] for name in options.get("--env", [])}
    env["FCCTL_CONTAINER"] = options.get("--name", [""])[0]
    return int(ask({"verb": "run", "options": options, "argv": words, "env": env}))


def complain(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code


def main(words: list[str]) -> int:
    with (STATE / "calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    refusal = STATE / "refuse"
    if refusal.exists():
        return complain(refusal.read_text(), 1)
    if words[0] == "version":
        print("27.1")
        return 0
    if words[:2] == ["image", "inspect"]:
        return 0 if words[2] == IMAGE else 1
    if words[0] == "ps":
        print("\n".join(ask({"verb": "ps", "argv": words[1:]})))
        return 0
    return start(words[1:]) if words[0] == "run" else int(ask({"verb": "rm", "argv": words[2:]}))


if __name__ == "__main__":
    sys.exit(serve() if sys.argv[1:] == ["daemon"] else main(sys.argv[1:]))
