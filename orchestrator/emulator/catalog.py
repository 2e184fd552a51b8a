"""The regions, zones, machine types, accelerators and images of the emulated cloud: a subset of the real ones.

Source: https://cloud.google.com/compute/docs/accelerator-optimized-machines (read 2026-11)."""

from __future__ import annotations

from typing import Any

GPU = "nvidia-l4"
ZONES: tuple[str, ...] = (
    "us-central1-a", "us-central1-b", "us-central1-c", "us-west1-a", "us-west1-b", "us-west1-c", "us-west4-a",
    "us-east1-b", "us-east1-c", "us-east1-d", "us-east4-a", "europe-west1-b", "europe-west4-a", "europe-west4-b",
    "asia-southeast1-b",
)  # fmt: skip
#: vCPUs -> GPUs of the G2 family; memory is 4 GiB per vCPU.
_G2 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
_OTHERS = {
    "e2-small": (2, 2048), "e2-medium": (2, 4096), "e2-standard-4": (4, 16384), "n1-standard-1": (1, 3840),
    "n1-standard-4": (4, 15360),
}  # fmt: skip
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


def machine_types() -> dict[str, dict[str, Any]]:
    """By name, without the fields that depend on the zone."""
    types: dict[str, dict[str, Any]] = {}
    for cpus, gpus in _G2.items():
        types[f"g2-standard-{cpus}"] = {
            **_shape(cpus, cpus * 4096),
            "accelerators": [{"guestAcceleratorType": GPU, "guestAcceleratorCount": gpus}],
        }
    types.update({name: _shape(cpus, memory) for name, (cpus, memory) in _OTHERS.items()})
    return types


def _shape(cpus: int, memory_mb: int) -> dict[str, Any]:
    return {
        "guestCpus": cpus,
        "memoryMb": memory_mb,
        "description": f"{cpus} vCPUs, {memory_mb / 1024:g} GB RAM",
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "isSharedCpu": False,
        "architecture": "X86_64",
    }


def accelerator_types() -> dict[str, dict[str, Any]]:
    return {
        GPU: {"description": "NVIDIA L4", "maximumCardsPerInstance": 8},
        "nvidia-tesla-t4": {"description": "NVIDIA T4", "maximumCardsPerInstance": 4},
    }


def gpus_of(machine_type: str) -> int:
    """How many GPUs come with a machine type."""
    return sum(a["guestAcceleratorCount"] for a in machine_types().get(machine_type, {}).get("accelerators", []))


def image(project: str, *, family: str | None = None, name: str | None = None) -> dict[str, Any] | None:
    """The newest image of a family, or one by name; None if there is none."""
    return next((one for one in images(project) if family == one["family"] or name == one["name"]), None)


def images(project: str) -> list[dict[str, Any]]:
    """The images of a project, one for each family."""
    size = str(_GIB_ON_IMAGE.get(project, 10))
    return [
        {"name": f"{family}-{_IMAGE_VERSION}", "family": family, "status": "READY", "diskSizeGb": size}
        for family in _FAMILIES.get(project, ())
    ]
