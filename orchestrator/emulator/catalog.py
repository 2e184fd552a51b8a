"""The regions, zones, machine types, accelerators and images of the emulated cloud: a subset of the real ones.

Source: https://cloud.google.com/compute/docs/accelerator-optimized-machines (read 2026-11)."""

from __future__ import annotations

from typing import Any

GPU = "nvidia-l4"
ZONES: tuple[str, ...] = (
    "us-central1-a",
    "us-central1-b",
    "us-central1-c",
    "us-west1-a",
    "us-west1-b",
    "us-west1-c",
    "us-west4-a",
    "us-east1-b",
    "us-east1-c",
    "us-east1-d",
    "us-east4-a",
    "europe-west1-b",
    "europe-west4-a",
    "europe-west4-b",
    "asia-southeast1-b",
)
#: Machine type -> the GPUs that come with it.
_G2 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
MACHINE_TYPES = {f"g2-standard-{cpus}": gpus for cpus, gpus in _G2.items()} | dict.fromkeys(
    ("e2-small", "e2-medium", "n1-standard-1", "n1-standard-4"), 0
)
_GIB_ON_IMAGE = {"deeplearning-platform-release": 100}
_FAMILIES = {
    "deeplearning-platform-release": (
        "common-cu129-ubuntu-2204-nvidia-580",
        "common-cu129-ubuntu-2404-nvidia-580",
        "pytorch-2-9-cu129-ubuntu-2404-nvidia-580",
    ),
    "debian-cloud": ("debian-12", "debian-11"),
    "ubuntu-os-cloud": ("ubuntu-2204-lts", "ubuntu-2404-lts-amd64"),
}
_IMAGE_VERSION = "v20261101"


def region_of(zone: str) -> str:
    return zone.rsplit("-", 1)[0]


def regions(zones: tuple[str, ...]) -> list[str]:
    return sorted({region_of(zone) for zone in zones})


def gpus_of(machine_type: str) -> int:
    """How many GPUs come with a machine type."""
    return MACHINE_TYPES.get(machine_type, 0)


def image(project: str, *, family: str | None = None, name: str | None = None) -> dict[str, Any] | None:
    """The newest image of a family, or one by name; None if there is none."""
    for one in _FAMILIES.get(project, ()):
        named = f"{one}-{_IMAGE_VERSION}"
        if family == one or name == named:
            return {"name": named, "diskSizeGb": str(_GIB_ON_IMAGE.get(project, 10))}
    return None
