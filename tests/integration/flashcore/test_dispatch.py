"""Calls made in C are the calls made from Python: same results, same refusals, whatever comes in between."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from flashcore import dispatch, launch, peaks
from flashcore.build import build
from flashcore.errors import LaunchFailed, Unsupported
from flashcore.extras import LOWER_RIGHT
from flashcore.variant import Variant

#: Adds up what it was told, so that the output says what arrived.
ECHO = """
#include "flashcore.h"
FLASHCORE_API int flashcore_forward(const flashcore_args *a) {
  if (a->scale == 7.f) return 700;
  _Float16 *o = (_Float16 *)a->o;
  o[0] = ((const _Float16 *)a->q)[0], o[1] = ((const _Float16 *)a->k)[0], o[2] = ((const _Float16 *)a->v)[0];
  o[3] = a->scale, o[4] = a->causal, o[5] = a->S_kv, o[6] = a->q_stride.row, o[7] = a->H_kv;
  o[8] = a->mask ? ((const char *)a->mask)[1] + 1 : 0, o[9] = a->mask_stride.batch, o[10] = a->mask_stride.row;
  return 0;
}
FLASHCORE_API const char *flashcore_error(int) { return "made up"; }
FLASHCORE_API size_t flashcore_args_bytes(void) { return sizeof(flashcore_args); }
"""

missing = dispatch.load()[1]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"calls cannot be made in C here: {missing}")


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory, builds: None) -> launch.Kernel:
    source = tmp_path_factory.mktemp("echo") / "echo.cpp"
    source.write_text(ECHO)
    takes: dict[str, Any] = {"grouped_heads": True, "lower_right": (64,), "masks": (64,), "alignment": 4}
    return launch.Kernel(build(Variant("echo", "cpu", source, "", **takes)))


def tensors(*shape: int, keys: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    B, H, S, D = shape or (1, 2, 5, 64)
    return torch.randn(B, H, S, D).half(), torch.randn(B, H, keys, D).half(), torch.randn(B, H, keys, D).half()


def heard(out: torch.Tensor) -> list[float]:
    return [float(x) for x in out.as_strided((8,), (1,))]


def slow_calls(kernel: launch.Kernel, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keeps calls that go through Python from now on."""
    seen: list[Any] = []
    real = launch.Kernel._template
    monkeypatch.setattr(launch.Kernel, "_template", lambda *a: (seen.append(a), real(*a))[1])
    kernel._templates.clear()
    return seen


def test_a_layout_met_before_is_called_in_c(echo: launch.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = slow_calls(echo, monkeypatch)
    for number in range(4):
        q, k, v = tensors(1, 2, 6, 64)
        out = echo(q, k, v, causal=True, scale=0.5)
        assert heard(out) == [float(x.flatten()[0]) for x in (q, k, v)] + [0.5, 1, 9, 64, 2], number
    assert len(seen) == 1
    assert out.stride() == torch.empty_like(q).stride()


def test_memory_that_a_kernel_needs_is_there_and_freed(
    tmp_path: Path, builds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is asked for once a layout, in the call that goes through Python; that one has it, too."""
    needy = ECHO.replace(
        "if (a->scale == 7.f)",
        "unsigned char *own = (unsigned char *)a->workspace;"
        "if (own) for (int i = 0; i < 1000 * a->S_kv; ++i) own[i] = 1;"
        "if (!own != !a->S_kv) return 701; if (a->scale == 7.f)",
    )
    size = "FLASHCORE_API size_t flashcore_workspace_bytes(const flashcore_args *a) { return 1000 * a->S_kv; }"
    (tmp_path / "needy.cpp").write_text(needy + size)
    kernel = launch.Kernel(build(Variant("needy", "cpu", tmp_path / "needy.cpp", "", alignment=4)))
    seen = slow_calls(kernel, monkeypatch)
    q, k, v = tensors(keys=5000)
    before = torch.uint8, sys.getrefcount(torch.uint8)
    for _ in range(100):  # 5 MB each
        assert heard(kernel(q, k, v))[:3] == [float(x.flatten()[0]) for x in (q, k, v)]
    assert len(seen) == 1
    assert abs(sys.getrefcount(before[0]) - before[1]) < 20
    with pytest.raises(LaunchFailed, match=r"made up \(700\)"):
        kernel(q, k, v, scale=7.0)


def test_the_empty_call_that_eager_rows_are_held_against_is_made_in_c(
    echo: launch.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = peaks.empty_tensors("cpu")
    echo(*tensors)
    monkeypatch.setattr(launch.Kernel, "_launch", None)  # of calls through ctypes
    assert heard(echo(*tensors))[3:6] == [0.125, 0, 1]


def test_every_difference_of_a_call_counts(echo: launch.Kernel) -> None:
    q, k, v = tensors()
    base = heard(echo(q, k, v))
    assert base[3:6] == [0.125, 0, 9]
    assert heard(echo(q, k, v, causal=True))[4] == 1
    assert heard(echo(q, k, v, scale=2.0))[3] == 2
    assert heard(echo(q, k, v, scale=2))[3] == 2  # an int
    assert heard(echo(q, k[:, :, :4], v[:, :, :4]))[5] == 4
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert heard(echo(turned, k, v))[6] == 128
    assert echo(turned, k, v).stride() == turned.stride()
    assert heard(echo(q, k[:, :1], v[:, :1]))[7] == 1
    assert heard(echo(q, k, v)) == base


def test_a_mask_is_part_of_a_call_and_its_layout_of_what_is_known(
    echo: launch.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = slow_calls(echo, monkeypatch)
    q, k, v = tensors(2, 2, 5, 64)
    masks = [torch.arange(9).expand(*size, 9) != 1 for size in ((2, 1, 1), (1, 1, 1), (2, 2, 5), (1, 2, 1))]
    strides = [(9, 0), (0, 0), (90, 9), (0, 0)]
    for _ in range(2):
        for mask, (batch, row) in zip(masks, strides, strict=True):
            for seen_key in (0, 1):
                mask[..., 1] = bool(seen_key)
                out = echo(q, k, v, causal=LOWER_RIGHT, mask=mask)
                assert [float(x) for x in out.as_strided((11,), (1,))][4:] == [2, 9, 64, 2, 1 + seen_key, batch, row]
        assert float(echo(q, k, v, causal=LOWER_RIGHT).flatten()[8]) == 0
        assert float(echo(q, k, v).flatten()[4]) == 0
    assert len(seen) == len(masks) + 2
    apart = torch.ones(2, 1, 1, 18, dtype=torch.bool)[..., ::2]
    for wrong in (masks[0].int(), masks[0][0], masks[0][..., :8], masks[2][:, :, :4], apart):
        with pytest.raises(Unsupported, match="this mask"):
            echo(q, k, v, mask=wrong)
    with pytest.raises(Unsupported, match="causal=3"):
        echo(q, k, v, causal=3)


def test_negatives_held_in_memory_are_read_as_what_they_are(echo: launch.Kernel) -> None:
    q, k, v = tensors()
    expected = heard(echo(-q, k, -v))
    assert heard(echo(torch._neg_view(q), k, torch._neg_view(v))) == expected
    with pytest.raises(Unsupported, match="negative bit"):
        echo(q, k, v, out=torch._neg_view(torch.empty_like(q)))


STATES: dict[str, Callable[[Callable[[], object]], object]] = {
    "trace": lambda call: torch.jit.trace(lambda x: (call(), x + 1)[1], (torch.ones(1),), check_trace=False),
    "vmap": lambda call: torch.vmap(lambda x: (call(), x)[1])(torch.ones(2)),
    "dispatch mode": lambda call: within(TorchDispatchMode(), call),
    "function mode": lambda call: within(BaseTorchFunctionMode(), call),
    "autocast": lambda call: within(torch.autocast("cpu", torch.bfloat16), call),
    "inference": lambda call: within(torch.inference_mode(), call),
}


def within(state: Any, call: Callable[[], object]) -> None:
    with state:
        call()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("state", STATES)
def test_a_call_is_known_only_in_the_state_that_it_was_taught_in(echo: launch.Kernel, state: str) -> None:
    assert dispatch.sees_modes(dispatch.load()[0])
    slow: list[Any] = []
    launcher = echo.launcher(lambda *call: slow.append(call))
    q, k, v = tensors()
    echo.teach(launcher, (q, k, v, False, None, None, None), torch.empty_like(q))
    call = partial(launcher, q, k, v, False, None, None)
    STATES[state](call)
    assert len(slow) == 1
    assert call() is not None
    other = threading.Thread(target=call)
    other.start()
    other.join()
    assert len(slow) == 1


def test_a_given_output_is_written_and_returned(echo: launch.Kernel) -> None:
    q, k, v = tensors()
    for _ in range(3):
        out = torch.zeros_like(q)
        assert echo(q, k, v, out=out) is out
        assert heard(out)[0] == float(q.flatten()[0])
    with pytest.raises(Unsupported, match="do not match"):
        echo(q, k, v, out=torch.empty(1, 2, 4, 64).half())


@pytest.mark.parametrize("times", [0, 3])
def test_refusals_are_the_same_before_and_after_a_layout_is_known(echo: launch.Kernel, times: int) -> None:
    q, k, v = tensors(1, 2, 7, 64)
    for _ in range(times):
        echo(q, k, v)
    with pytest.raises(Unsupported, match="no backward"):
        echo(q.requires_grad_(), k, v)
    q = q.detach()
    with pytest.raises(Unsupported, match="start at a multiple of 4 bytes"):
        echo(torch.empty(q.numel() + 1).half()[1:].view(q.shape), k, v)
    with pytest.raises(Unsupported, match="is on meta"):
        echo(q.to("meta"), k, v)
    with pytest.raises(Unsupported, match="float32"):
        echo(q.float(), k.float(), v.float())
    with pytest.raises(LaunchFailed, match=r"made up \(700\)"):
        echo(q, k, v, scale=7.0)
    with pytest.raises(TypeError, match="'caussal'"):
        echo(q, k, v, caussal=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        echo(q, k)  # type: ignore[call-arg]
    with pytest.raises((TypeError, AttributeError)):
        echo(q, k, None)  # type: ignore[arg-type]
    with pytest.raises((TypeError, AttributeError)):
        echo(1, 2, 3)  # type: ignore[arg-type]


def test_subclasses_of_tensors_go_through_python(echo: launch.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(1, 2, 8, 64)
    echo(q, k, v)
    seen = slow_calls(echo, monkeypatch)
    parameter = torch.nn.Parameter(q, requires_grad=False)
    assert heard(echo(parameter, k, v))[0] == float(q.flatten()[0])
    assert len(seen) == 1


def test_more_layouts_than_there_is_room_for(echo: launch.Kernel) -> None:
    for _ in range(2):
        for rows in range(1, 700):
            q, k, v = tensors(1, 1, rows, 64, keys=2)
            out = echo(q, k, v)
            assert heard(out)[:3] == [float(x.flatten()[0]) for x in (q, k, v)]
            assert out.shape == q.shape


def test_threads_do_not_mix_up_their_calls(echo: launch.Kernel) -> None:
    def wrong(number: int) -> list[int]:
        q, k, v = tensors(1, 2, 5 + number, 64)
        right = [float(x.flatten()[0]) for x in (q, k, v)]
        scales = [float(number + 1 + step % 3) / 16 for step in range(400)]
        return [number for scale in scales if heard(echo(q, k, v, scale=scale))[:3] != right]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(wrong, range(6)))
    finally:
        sys.setswitchinterval(interval)
    assert found == [[]] * 6


def test_nothing_is_kept_alive_and_nothing_leaks(echo: launch.Kernel) -> None:
    q, k, v = tensors()
    held = [weakref.ref(x) for x in (q, k, v)]
    counts = [sys.getrefcount(x) for x in (q, None, True, torch.float16)]
    for _ in range(50):
        out = echo(q, k, v)
    assert sys.getrefcount(out) == 2
    again = [sys.getrefcount(x) for x in (q, None, True, torch.float16)]
    assert all(abs(b - a) < 40 for a, b in zip(counts, again, strict=True))
    assert again[0] == counts[0]
    del q, k, v
    assert [ref() for ref in held] == [None, None, None]
    other = launch.Kernel(echo.built)
    other(*tensors())
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None


def test_without_a_compiler_calls_go_through_python(monkeypatch: pytest.MonkeyPatch, echo: launch.Kernel) -> None:
    monkeypatch.setattr(dispatch, "load", lambda: (None, "no compiler"))
    plain = launch.Kernel(echo.built)
    assert plain.dispatch_missing == "no compiler"
    assert plain.launcher(lambda *_: None) is None  # type: ignore[arg-type, return-value]
    q, k, v = tensors()
    assert heard(plain(q, k, v)) == heard(echo(q, k, v))


@pytest.mark.parametrize("without", ["compiler", "headers", "torch"])
def test_why_it_cannot_be_had_is_said(without: str, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    said = {"compiler": "did not compile", "headers": "python3-dev", "torch": "__dlpack_c_exchange_api__"}[without]
    if without == "compiler":
        monkeypatch.setattr(dispatch, "FLAGS", ("--no-such-flag",))
    elif without == "headers":
        monkeypatch.setattr("sysconfig.get_path", lambda _name: "/nowhere")
    else:
        monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    module, reason = dispatch.load.__wrapped__()
    assert module is None
    assert said in reason
    assert [*own_cache.glob("*")] == []


def test_the_extension_is_compiled_once(own_cache: Path) -> None:
    first = dispatch._compiled()
    stamp = first.stat().st_mtime_ns
    assert dispatch._compiled() == first
    assert first.stat().st_mtime_ns == stamp
    assert [p.name for p in own_cache.iterdir()] == [first.parent.name]


def test_a_tensor_on_another_device_than_the_current_one_goes_through_python(echo: launch.Kernel) -> None:
    current, slow = [0], list[Any]()
    launcher = dispatch.load()[0].Launcher()
    q, k, v = tensors()
    with pytest.raises(TypeError, match="configure"):
        launcher(q, k, v)
    allocate, by_layout = dispatch.allocator("cpu")
    forward = ctypes.cast(echo._forward, ctypes.c_void_p).value
    settings = (
        forward, dispatch.DEVICE_TYPES["cpu"], 4, True, by_layout, torch.Tensor, lambda *a: slow.append(a),
        echo._failed, allocate, lambda: current[0],
    )  # fmt: skip
    launcher.configure(*settings)
    with pytest.raises(ValueError, match="configured twice"):
        launcher.configure(*settings)
    echo.teach(launcher, (q, k, v, False, None, None, None), q)
    assert heard(launcher(q, k, v))[0] == float(q.flatten()[0])
    assert slow == []
    current[0] = 1
    assert launcher(q, k, v) is None
    assert [call[3:] for call in slow] == [(False, None, None, None)]
