"""From sm_90 on a launch begins before the one ahead of it has ended (csrc/driver.cuh), and touches no memory before
that one's results are there: in the PTX of each kernel, and on a GPU."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flashcore import toolchain
from flashcore.build import build
from flashcore.errors import FlashcoreError
from flashcore.launch import Kernel
from flashcore.registry import CSRC, VARIANTS

#: Of each library one unit that is quick to compile.
UNITS = {"flagship.cu": ["-DPART=8"], "extended.cu": ["-DPART=2"], "decode.cu": ["-DPART=2", "-DPAGED=0"],
         "decode.cu paged": ["-DPART=2", "-DPAGED=1"], "flagship.cu masked": ["-DPART=4096"]}  # fmt: skip
MEMORY = re.compile(r"^\s*(?:@%p\d+ )?(?:ld\.(?:volatile\.)?global|st\.(?:volatile\.)?global|cp\.async\.cg|atom|red)")


def kernels(unit: str, arch: str, tmp_path: Path) -> list[list[str]]:
    """The lines of each kernel's PTX."""
    try:
        nvcc = toolchain.nvcc()
    except FlashcoreError as e:
        pytest.skip(str(e))
    ptx = tmp_path / "unit.ptx"
    source = CSRC / unit.split(maxsplit=1)[0]
    command = [nvcc, "-ptx", f"-arch=compute_{arch}", "-std=c++17", *UNITS[unit], "-o", str(ptx), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return [kernel.splitlines() for kernel in ptx.read_text().split(".entry")[1:]]


def first(pattern: str | re.Pattern[str], lines: list[str]) -> int:
    return next(i for i, line in enumerate(lines) if re.search(pattern, line))


@pytest.mark.parametrize("unit", UNITS)
def test_each_kernel_waits_before_it_touches_memory(unit: str, tmp_path: Path) -> None:
    found = kernels(unit, "90", tmp_path)
    assert found
    for lines in found:
        assert first(r"griddepcontrol\.wait", lines) < first(MEMORY, lines)
        assert first(r"griddepcontrol\.wait", lines) < first(r"griddepcontrol\.launch_dependents", lines)


def test_an_l4_has_none_of_it(tmp_path: Path) -> None:
    found = kernels("flagship.cu", "89", tmp_path)
    assert found
    assert not any("griddepcontrol" in line for lines in found for line in lines)


LAUNCHES = 40
#: B, H, S_q, S_kv, D: few blocks and many, those of a cache.
SHAPES = {
    "flagship": [(1, 8, 64, 64, 64), (1, 8, 512, 512, 64), (2, 16, 512, 512, 64), (2, 16, 256, 256, 128)],
    "extended": [(1, 8, 512, 512, 64)],
    "decode": [(1, 32, 1, 4096, 128), (4, 16, 2, 1024, 64)],
}


@pytest.fixture(params=SHAPES)
def kernel(request: pytest.FixtureRequest, builds: None) -> Kernel:
    return Kernel(build(VARIANTS[request.param]))


def drawn(shape: tuple[int, ...]) -> list[torch.Tensor]:
    B, H, S_q, S_kv, D = shape
    return [torch.randn(B, H, S, D, device="cuda", dtype=torch.float16) for S in (S_q, S_kv, S_kv)]


def captured(body: Callable[[], None]) -> Callable[[], None]:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        body()
    return graph.replay


def both_ways(body: Callable[[], None]) -> list[Callable[[], None]]:
    body()  # builds what it needs
    return [body, captured(body)]


def chain(
    kernel: Kernel, pair: tuple[torch.Tensor, torch.Tensor], k: torch.Tensor, v: torch.Tensor, alone: bool = False
) -> None:
    """An even number of launches, each on what the one before wrote, from the first of the pair into itself."""
    for i in range(LAUNCHES):
        kernel(pair[i % 2], k, v, out=pair[1 - i % 2])
        if alone:
            torch.cuda.synchronize()  # nothing overlaps


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_each_launch_reads_what_the_one_before_wrote(kernel: Kernel) -> None:
    for shape in SHAPES[kernel.variant.name]:
        q, k, v = drawn(shape)
        v *= 8
        a, b = torch.empty_like(q), torch.empty_like(q)

        body = functools.partial(chain, kernel, (a, b), k, v)
        a.copy_(q)
        body(alone=True)
        expected = a.clone()
        for run in both_ways(body):
            for _ in range(10):
                a.copy_(q), b.fill_(torch.nan)
                torch.cuda.synchronize()
                run()
                assert torch.equal(a, expected), shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_copies_fills_and_other_streams_are_waited_for(kernel: Kernel) -> None:
    q, k, v = drawn(SHAPES[kernel.variant.name][-1])
    other, keys, slow = torch.randn_like(k), torch.empty_like(k), torch.randn(4096, 4096, device="cuda")
    outs = [torch.empty_like(q) for _ in range(4)]
    side = torch.cuda.Stream()

    def body() -> None:
        here = torch.cuda.current_stream()
        keys.copy_(k)
        kernel(q, keys, v, out=outs[0])
        keys.zero_()
        kernel(q, keys, v, out=outs[1])
        side.wait_stream(here)
        with torch.cuda.stream(side):
            torch.mm(slow, slow)
            keys.copy_(other)
        here.wait_stream(side)
        kernel(q, keys, v, out=outs[2])
        torch.add(k, other, out=keys)
        kernel(q, keys, v, out=outs[3])

    scale = q.shape[-1] ** -0.5
    expected = [
        torch.softmax(q.double() @ x.double().mT * scale, -1) @ v.double() for x in (k, k * 0, other, k + other)
    ]
    for run in both_ways(body):
        for _ in range(5):
            for out in outs:
                out.fill_(torch.nan)
            torch.cuda.synchronize()
            run()
            torch.cuda.synchronize()
            for out, right in zip(outs, expected):  # noqa: B905 (Python 3.9)
                assert (out.double() - right).abs().max() <= 5e-3
