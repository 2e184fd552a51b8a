"""Readers turn a tool's output file into a document: a job's ``collect: [{reader: ptxas, file: build.log}]``.

Files are written by whatever the job ran, so each reader bounds what it takes in and raises nothing but
:class:`ReaderError`. Times in documents are microseconds.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fcctl_remote.readers.source import ReaderError
from fcctl_remote.wire import READERS, SCHEMA_VERSION

__all__ = ["ReaderError", "read"]

#: Readers that are functions of one module; any other is a module with a function ``read``.
_MODULES = {
    "flashcore": "benchmarks", "google_benchmark": "benchmarks", "metrics": "benchmarks", "nvbench": "benchmarks",
    "pytest_benchmark": "benchmarks", "rates": "printed", "times": "printed",
}  # fmt: skip


def read(reader: str, path: str, env: Mapping[str, str] | None = None, shown: str | None = None) -> dict[str, Any]:
    """The document in the file at ``path``, as JSON values.

    ``env`` is the step's environment, where a reader needs a program (``ncu --import``, ``c++filt``); ``shown`` is the
    file's name in messages. Raises ReaderError: the file is not what the reader reads; ``unavailable`` is set where the
    figures could not be had on this machine (profiling counters are not permitted, ``ncu`` is missing), which is no
    fault of the job."""
    if reader not in READERS:
        raise ReaderError("unknown reader '%s'" % reader, "known: %s" % ", ".join(READERS))
    function, name = reader.replace("-", "_"), shown or str(path)
    module = importlib.import_module("fcctl_remote.readers." + _MODULES.get(function, function))
    make = getattr(module, function if function in _MODULES else "read")
    try:
        document: dict[str, Any] = make(path, dict(env) if env is not None else {})
    except ReaderError as error:
        error.reader = reader
        error.message = "%s: %s" % (name, error.message.replace(str(path), name))
        raise
    except (RecursionError, MemoryError, OverflowError) as error:
        raise ReaderError("%s: cannot be read as %s: %s" % (name, reader, type(error).__name__)) from None
    document["schema_version"] = SCHEMA_VERSION
    return document
