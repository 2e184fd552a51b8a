"""The log file: one JSON object a line, rotated, without secrets. For finding out afterwards what happened."""

from __future__ import annotations

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
    import platformdirs

    return Path(platformdirs.user_log_dir("fcctl", appauthor=False)) / FILE_NAME


def start() -> Path | None:
    """Send the records of this process to the log file; its path, or None where it cannot be written."""
    path = log_file()
    try:
        if not path.parent.is_dir():
            from orchestrator.base.files import make_folders  # brings tempfile: once on a computer is often enough

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


class _RotatingFile(logging.FileHandler):
    """Rotates by renaming when it has grown. Several fcctl may write at once: each line is one short append."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _rotate(path)
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        path.chmod(0o600)

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not None and self.stream.tell() > MAX_BYTES:
            self.stream.close()
            _rotate(self.path)
            self.stream = self._open()
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """A full disk must not turn a good run into a failure."""


def _rotate(path: Path) -> None:
    try:
        if path.stat().st_size <= MAX_BYTES:
            return
    except FileNotFoundError:
        return
    for number in range(KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        if newer.exists():
            newer.replace(older)
