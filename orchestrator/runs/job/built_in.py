"""The jobs that work in any workspace: the wheel has them. Others belong to FlashCore's kernels."""

from __future__ import annotations

BUILT_IN = ("preflight",)
