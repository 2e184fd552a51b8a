"""Paramiko without two slow imports: Invoke, half of the import time, is imported on first use; and Paramiko's version
is read from the name of one folder, not from the metadata of all packages."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

__all__ = ["CURVE25519", "paramiko"]

METADATA = "importlib.metadata"


class _Deferred(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _Metadata(_Deferred):
    """Package versions, read from the names of pip's ``dist-info`` folders."""

    def version(self, name: str) -> str:
        return _version_beside(name) or str(self.__getattr__("version")(name))


def _version_beside(name: str) -> str | None:
    """The version that the one ``NAME-VERSION.dist-info`` beside a package tells; None if there is not just one."""
    places = getattr(sys.modules.get(name), "__path__", None) or [""]
    head, tail = f"{name}-", ".dist-info"
    try:
        beside = os.listdir(os.path.dirname(places[0]))  # noqa: PTH120, PTH208 - before pathlib is needed
    except OSError:
        return None
    folders = [entry for entry in beside if entry.startswith(head) and entry.endswith(tail)]
    return folders[0][len(head) : -len(tail)] if len(folders) == 1 else None


_stand_ins = {"invoke": _Deferred("invoke"), METADATA: _Metadata(METADATA)}
for _name, _module in _stand_ins.items():
    sys.modules.setdefault(_name, _module)

import paramiko  # noqa: E402

for _name, _module in _stand_ins.items():
    if sys.modules.get(_name) is _module:
        del sys.modules[_name]  # whoever else imports it gets the real one

#: One key exchange under two names: Paramiko knows it by the older one, and a server may offer only that of RFC 8731.
CURVE25519 = "curve25519-sha256"
_KEX: dict[str, Any] = getattr(paramiko.Transport, "_kex_info", {})
if f"{CURVE25519}@libssh.org" in _KEX:
    _KEX.setdefault(CURVE25519, _KEX[f"{CURVE25519}@libssh.org"])
