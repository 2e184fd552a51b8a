"""Paramiko, without what only it wants and we do not.

It imports Invoke for ``Match exec`` of a configuration file, which brings in asyncio, a test framework and a second
YAML: half of what importing Paramiko takes. It gets a stand-in that becomes Invoke when somebody touches it.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__all__ = ["paramiko"]


class _Deferred(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


if "invoke" not in sys.modules:
    sys.modules["invoke"] = _Deferred("invoke")

import paramiko  # noqa: E402

if isinstance(sys.modules.get("invoke"), _Deferred):
    del sys.modules["invoke"]  # whoever else imports it gets the real one
