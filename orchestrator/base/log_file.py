"""The log file: one JSON object a line, rotated, without secrets. For finding out afterwards what happened."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import time
from pathlib import Path

MAX_BYTES = 2 * 1024 * 1024
KEPT = 3
FILE_NAME = "fcctl.log"

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY", re.IGNORECASE)
_PATTERNS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{8,}"),
    re.compile(r"(?i)(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(
        r"(?i)\b(?:\w*(?:token|secret|passw(?:or)?d|passphrase|api_?key|access_key)\w*)[\"']?\s*[=:]\s*[\"']?[^\s\"',;&}]+"
    ),
)


def log_file() -> Path:
    """Where the log is."""
    from orchestrator.base.files import user_folder

    return user_folder("log") / FILE_NAME


def start() -> Path | None:
    """Send the records of this process to the log file; its path, or None where it cannot be written."""
    path = log_file()
    try:
        if not path.parent.is_dir():
            from orchestrator.base.files import make_folders

            make_folders(path.parent, 0o700)  # the sessions' folder is made beside it
        handler = _RotatingFile(path)
    except OSError:
        logging.getLogger().addHandler(logging.NullHandler())  # without any, Python prints records on standard error
        return None
    handler.setFormatter(_JsonLines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("orchestrator").setLevel(logging.DEBUG)
    return path


def stop() -> None:
    """Close the log file; the counterpart of :func:`start`."""
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _RotatingFile)]:
        root.removeHandler(handler)
        handler.close()


def redacted(text: str) -> str:
    """``text`` with secrets replaced: values of variables with telling names, keys, bearer tokens, URL passwords."""
    for name, value in os.environ.items():
        if len(value) >= 6 and _SECRET_NAME.search(name):
            text = text.replace(value, "[redacted]")
    for pattern in _PATTERNS:
        text = pattern.sub("[redacted]", text)
    return text


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": redacted(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = redacted(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


class _RotatingFile(logging.Handler):
    """Appends each record; a full disk stops no command. Of several processes one renames a large file, and the others
    notice."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._fd = _open(path)
        self._torn = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
            if self._has_room():
                line = b"\n" + line if self._torn else line
                self._torn = os.write(self._fd, line) < len(line)
        except Exception:  # noqa: BLE001 - a full disk must not turn a good run into a failure
            self.handleError(record)

    def close(self) -> None:
        super().close()
        fd, self._fd = self._fd, -1  # logging closes each handler once more at exit
        with contextlib.suppress(OSError):
            os.close(fd)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Nothing: standard error is for the command."""

    def _has_room(self) -> bool:
        """Whether the file may grow, after having it renamed if it is large; one that cannot be has a limit, too."""
        if os.fstat(self._fd).st_size <= MAX_BYTES:
            return True
        rotated = _rotate(self.path)
        fresh, old = _open(self.path), self._fd
        self._fd = fresh
        os.close(old)
        return rotated or os.fstat(fresh).st_size <= 2 * MAX_BYTES


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _rotate(path: Path) -> bool:
    """Rename the file if it is large, and older ones before it; False: the disk does not let it, or them."""
    from orchestrator.base.errors import ConflictError
    from orchestrator.base.files import alone_in

    try:
        with alone_in(path.parent, 0.0):
            names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, KEPT))]
            # another process may just have renamed it
            is_large = path.exists() and path.stat().st_size > MAX_BYTES
            for newer, older in reversed(list(itertools.pairwise(names))) if is_large else ():
                with contextlib.suppress(FileNotFoundError):
                    newer.replace(older)
    except OSError:
        return False
    except ConflictError:  # another process is just doing it
        pass
    return True
