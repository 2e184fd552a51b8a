"""A user's folder in which every module of the standard library has a namesake."""

from __future__ import annotations

import sys
from pathlib import Path


def shadow_stdlib(folder: Path) -> None:
    """Write ``queue.py`` and all the others: whoever imports one of them from ``folder`` ends at once, and says so."""
    for name in sys.stdlib_module_names:
        (folder / f"{name}.py").write_text(f'raise SystemExit("the {name} of the user was imported")\n')
