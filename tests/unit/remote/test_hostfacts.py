"""Facts of a host that cost no process."""

from __future__ import annotations

from pathlib import Path

from fcctl_remote.base.hostfacts import driver_models


def test_the_names_of_the_gpus_that_the_driver_has(tmp_path: Path) -> None:
    """A run that ends before the first sample of its telemetry names its GPU, too."""
    for address, model in (("0000:81:00.0", "NVIDIA L4"), ("0000:02:00.0", "NVIDIA H100 80GB HBM3")):
        (tmp_path / address).mkdir()
        text = f"Model: \t\t {model}\nIRQ:   \t\t 130\nGPU UUID: \t GPU-0\nVideo BIOS: \t 95.04\n"
        (tmp_path / address / "information").write_text(text)
    (tmp_path / "0000:ff:00.0").mkdir()
    assert driver_models(str(tmp_path)) == ["NVIDIA H100 80GB HBM3", "NVIDIA L4"]
    assert driver_models(str(tmp_path / "none")) == []
