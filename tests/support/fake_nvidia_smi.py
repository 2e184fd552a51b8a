"""An nvidia-smi that reports one GPU, as busy as a file says."""

from __future__ import annotations

from pathlib import Path

_PROGRAM = """\
#!/bin/sh
line() {{ echo "0, NVIDIA L4, $(cat '{used}'), 0, 1024, 23034, 2040, 6251, 71.84, 63, 0x0000000000000001"; }}
case " $* " in *" -l "*) while line; do sleep 0.2; done ;; *) line ;; esac
"""


def fake_nvidia_smi(folder: Path) -> Path:
    """Put the program into ``folder``, which is made; the file that says the utilisation in percent, 0 at first."""
    folder.mkdir()
    used = folder / "used"
    used.write_text("0")
    program = folder / "nvidia-smi"
    program.write_text(_PROGRAM.format(used=used))
    program.chmod(0o755)
    return used
