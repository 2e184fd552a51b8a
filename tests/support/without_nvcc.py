"""Imported by the server that commands are forked from: their computer has no CUDA toolkit beside PATH."""

from __future__ import annotations

from fcctl_remote.probe import gpu

gpu._TOOLKITS = ()
