"""Which GPUs there are, from what nvidia-smi -L prints."""

from __future__ import annotations

import pytest

from fcctl_remote.probe import gpu
from fcctl_tune.workers.hosts import Device, alike, devices, multiprocessors, parse

TWO = """GPU 0: NVIDIA L4 (UUID: GPU-11111111-aaaa-bbbb-cccc-000000000000)
GPU 1: NVIDIA L4 (UUID: GPU-22222222-aaaa-bbbb-cccc-000000000000)
"""
MIG = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-33333333-aaaa)
  MIG 1g.10gb     Device  0: (UUID: MIG-aaaaaaaa-0000)
  MIG 1g.10gb     Device  1: (UUID: MIG-bbbbbbbb-0000)
GPU 1: NVIDIA L4 (UUID: GPU-44444444-aaaa)
"""


def uuids(text: str, visible: str | None = None) -> list[str]:
    return [d.uuid for d in parse(text, visible)]


def test_every_gpu_is_a_slot_of_its_own() -> None:
    first, second = parse(TWO)
    assert (first.worker, first.model) == ("gpu-0", "NVIDIA L4")
    assert first.env == {"CUDA_VISIBLE_DEVICES": "GPU-11111111-aaaa-bbbb-cccc-000000000000"}
    assert second.worker == "gpu-1"


def test_only_those_that_are_visible_in_the_order_given() -> None:
    assert uuids(TWO, "1,0") == [d.uuid for d in reversed(parse(TWO))]
    assert uuids(TWO, "GPU-2222") == [parse(TWO)[1].uuid]
    assert uuids(TWO, "1,7,0") == [parse(TWO)[1].uuid]  # as CUDA has it: the first unknown ends the list
    assert uuids(TWO, "") == []
    assert uuids(TWO, "GPU-") == []  # not unique


def test_a_divided_gpu_is_its_parts() -> None:
    assert uuids(MIG) == ["MIG-aaaaaaaa-0000", "MIG-bbbbbbbb-0000", "GPU-44444444-aaaa"]
    assert parse(MIG)[0].model == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert uuids(MIG, "1") == ["GPU-44444444-aaaa"]
    assert [d.model for d in alike(parse(MIG))] == ["NVIDIA H100 80GB HBM3 MIG 1g.10gb"] * 2


def test_without_nvidia_smi_the_processor_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_SMI", ())  # this machine may have one
    assert devices({"PATH": "/nonexistent"}) == [Device("gpu-0", "cpu")]
    (stand_in,) = devices({"PATH": "/nonexistent"})
    assert stand_in.env == {}
    assert multiprocessors(stand_in) is None


def test_times_of_two_models_do_not_compare() -> None:
    mixed = [Device("gpu-0", "A"), Device("gpu-1", "B"), Device("gpu-2", "B")]
    assert alike(mixed) == mixed[1:]
    assert alike(mixed[:2]) == mixed[:1]
