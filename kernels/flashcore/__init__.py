"""FlashCore: attention kernels for one GPU at a time, with their build, check, bench and profile.

The kernels are plain shared libraries behind the C interface of ``csrc/flashcore.h``; Python compiles them, binds them
with ctypes and measures them against PyTorch. Needs torch and numpy; runs on Python >= 3.9.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 9):  # noqa: UP036 (whatever Python the GPU machine has runs this)
    raise SystemExit("error: flashcore needs Python >= 3.9, this is %s" % sys.version.split()[0])  # noqa: UP031
