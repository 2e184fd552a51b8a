"""What ``shutdown`` and its relatives are inside an emulated instance. Run as a script with the standard library only.

``power_command.py ENDPOINT.json NAME ARGUMENTS...``: asks the emulator to cut this instance's power, now or later."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from urllib.parse import urlsplit

_OFF = ("poweroff", "halt")
_UNITS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "ms": 0.001}
_USAGE = "the emulator has only commands that stop the instance"


class Unknown(Exception):
    """Arguments this stand-in does not know."""


def request_of(name: str, arguments: list[str], now: float) -> dict[str, object]:
    """The emulator's request for a power command: {"do": off | reboot | cancel | show, "after_s", "unit"}.

    Raises Unknown: the command does not turn the machine off or restart it."""
    if name in (*_OFF, "reboot"):
        return _after(name, 0.0)
    if name == "shutdown":
        return _shutdown(arguments, now)
    if name == "systemctl":
        return _systemctl(arguments)
    return _systemd_run(arguments)


def _after(verb: str, seconds: float, unit: str = "shutdown") -> dict[str, object]:
    return {"do": "reboot" if verb == "reboot" else "off", "after_s": seconds, "unit": unit}


def _shutdown(arguments: list[str], now: float) -> dict[str, object]:
    flags = {a for a in arguments if a.startswith("-")}
    if flags & {"-c"}:
        return {"do": "cancel", "unit": "shutdown"}
    if "--show" in flags:
        return {"do": "show"}
    if flags - {"-h", "-P", "-H", "-r", "--poweroff", "--halt", "--reboot", "--no-wall"}:
        raise Unknown(f"shutdown: unknown options {' '.join(sorted(flags))}: {_USAGE}")
    times = [a for a in arguments if not a.startswith("-")]
    verb = "reboot" if flags & {"-r", "--reboot"} else "poweroff"
    return _after(verb, _delay(times[0] if times else "+1", now))


def _delay(text: str, now: float) -> float:
    if text == "now":
        return 0.0
    if match := re.fullmatch(r"\+?(\d+)", text):
        return 60.0 * int(match.group(1))
    if match := re.fullmatch(r"(\d\d?):(\d\d)", text):
        local = time.localtime(now)
        today = 3600 * local.tm_hour + 60 * local.tm_min + local.tm_sec
        return float((3600 * int(match.group(1)) + 60 * int(match.group(2)) - today) % 86400)
    raise Unknown(f"shutdown: unknown time '{text}'")


def _systemctl(arguments: list[str]) -> dict[str, object]:
    words = [a for a in arguments if not a.startswith("-")]
    if words and words[0] in (*_OFF, "reboot"):
        return _after(words[0], 0.0)
    if len(words) == 2 and words[0] == "stop" and words[1].endswith(".timer"):
        return {"do": "cancel", "unit": words[1][: -len(".timer")]}
    raise Unknown(f"the emulator has no systemd: {_USAGE}")


def _systemd_run(arguments: list[str]) -> dict[str, object]:
    values: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if not equals and option in ("--unit", "-u", "--on-active", "--description", "--timer-property", "-p"):
            value = rest.pop(0) if rest else ""
        values[{"-u": "--unit"}.get(option, option)] = value
    words = [word.rsplit("/", 1)[-1] for word in rest]
    verb = next((word for word in words if word in (*_OFF, "reboot", "shutdown")), None)
    if verb is None:
        raise Unknown(f"systemd-run: {_USAGE}")
    span = re.fullmatch(r"([\d.]+)\s*([a-z]*)", values.get("--on-active", "0"))
    if span is None or span.group(2) not in _UNITS:
        raise Unknown(f"systemd-run: unknown time '{values.get('--on-active')}'")
    return _after(verb, float(span.group(1)) * _UNITS[span.group(2)], values.get("--unit", "systemd-run"))


def ask(endpoint: str, request: dict[str, object]) -> tuple[int, str]:
    """POST to the emulator over a plain socket (an HTTP library takes longer to import than all of this)."""
    with open(endpoint, encoding="utf-8") as stream:  # noqa: PTH123 - pathlib costs start-up time
        where = json.load(stream)
    url = urlsplit(where["url"])
    body = json.dumps(request).encode()
    head = (
        f"POST {url.path}/guest/{where['token']}/power HTTP/1.0\r\nHost: {url.netloc}\r\nContent-Type: "
        f"application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((url.hostname or "127.0.0.1", url.port or 80), timeout=120) as link:
        link.sendall(head.encode() + body)
        reply = b"".join(iter(lambda: link.recv(65536), b""))
    top, _, text = reply.decode("utf-8", "replace").partition("\r\n\r\n")
    return int(top.split()[1]), str(json.loads(text).get("text", "")) if text else ""


def main(argv: list[str]) -> int:
    endpoint, name, *arguments = argv
    try:
        status, text = ask(endpoint, request_of(name, arguments, time.time()))
    except (Unknown, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    if text:
        sys.stdout.write(f"{text}\n")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
