"""The tolerances: right kernels pass whatever their tiles, types and inputs, and planted faults do not."""

from __future__ import annotations

import math

import pytest
import torch

from flashcore import inputs, quantisation, roundings
from flashcore.reference import expected
from flashcore.shapes import Shape

HALF, BFLOAT = torch.float16, torch.bfloat16
FORMATS = {HALF: roundings.FP16, BFLOAT: roundings.BF16}


def simulated(
    tensors: inputs.Tensors,
    *,
    keys: int = 64,
    groups: int = 1,
    rounded_sums: bool = False,
    half_sums: bool = False,
    gain: float = 1.0,
    causal: bool = False,
    scale: float = 0.125,
) -> torch.Tensor:
    """What a kernel gives that rounds weights and outputs to the inputs' type and is exact otherwise: ``groups`` of
    warps with tiles of so many ``keys`` in turns; sums of rounded weights or not; and its faults."""
    dtype, (q, k, v) = tensors[0].dtype, (x.double() for x in tensors)
    scores = (q @ k.transpose(2, 3)) * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -math.inf)
    parts = []
    for group in range(groups):
        most = torch.full((*q.shape[:3], 1), -1e300, dtype=torch.float64)
        total, out = torch.zeros_like(most), torch.zeros_like(q)
        for first in range(group * keys, k.shape[2], keys * groups):
            tile = scores[..., first : first + keys]
            higher = torch.maximum(most, tile.amax(3, keepdim=True))
            keep, weights = torch.exp(most - higher), torch.exp(tile - higher)
            operand = weights.to(dtype).double()
            total = total * keep + (operand if rounded_sums else weights).sum(3, keepdim=True)
            out = out * keep
            for at in range(0, operand.shape[3], 16):  # an mma
                out = out + operand[..., at : at + 16] @ v[:, :, first + at : first + at + 16]
                out = out.half().double() if half_sums else out
            most = higher
        parts.append((most, total, out))
    most = torch.stack([part[0] for part in parts]).amax(0)
    total, out = (sum(part[i] * torch.exp(part[0] - most) for part in parts) for i in (1, 2))
    return (out / total * gain).to(dtype).double()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("values", ["plain", *inputs.HOSTILE])
@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
def test_right_kernels_pass(dtype: torch.dtype, values: str, causal: bool) -> None:
    for shape in (Shape(1, 1, 1, 64), Shape(1, 1, 1, 64, 129), Shape(1, 1, 77, 64, 130), Shape(1, 1, 160, 128)):
        tensors = inputs.draw(shape, 7, "cpu", values, dtype=dtype)
        for scale in (0.125, 0.03, -0.3) if values == "plain" else (0.125,):
            known = expected(*tensors, causal=causal, scale=scale)
            for keys, groups, rounded in ((64, 1, False), (16, 4, True), (128, 2, False)):
                out = simulated(tensors, keys=keys, groups=groups, rounded_sums=rounded, causal=causal, scale=scale)
                verdict = roundings.judge(out, known)
                assert verdict.fault is None, (shape, scale, keys, verdict)
                assert verdict.used > 0 or out.equal(known.right)


@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
def test_the_relative_rms_error_of_plain_inputs_is_two_roundings(dtype: torch.dtype) -> None:
    """2.9e-4 and 2.3e-3; what is allowed is a quarter more."""
    tensors = inputs.draw(Shape(1, 2, 512, 64), 1, "cpu", dtype=dtype)
    verdict = roundings.judge(simulated(tensors), expected(*tensors))
    two = math.sqrt(2) * FORMATS[dtype].sigma
    assert two == pytest.approx({HALF: 2.93e-4, BFLOAT: 2.35e-3}[dtype], rel=0.01)
    assert 0.85 * two <= verdict.error.rel_rms <= two
    assert verdict.tolerance.rel_rms == pytest.approx(1.25 * two, rel=0.03)


def test_a_product_summed_up_in_half_precision_fails() -> None:
    for S in (128, 512):
        tensors = inputs.draw(Shape(1, 1, S, 64), 2, "cpu")
        verdict = roundings.judge(simulated(tensors, half_sums=True), expected(*tensors))
        assert "RMS error" in str(verdict.fault) or "standard deviations" in str(verdict.fault), (S, verdict)
        assert verdict.error.rel_rms > verdict.tolerance.rel_rms


@pytest.mark.parametrize("gain", [1.0005, 0.9995])
def test_a_gain_that_is_wrong_by_half_a_thousandth_fails(gain: float) -> None:
    tensors = inputs.draw(Shape(1, 1, 64, 64), 3, "cpu")
    known = expected(*tensors)
    verdict = roundings.judge(simulated(tensors, gain=gain), known)
    assert verdict.fault is not None
    assert abs(verdict.error.gain) > verdict.tolerance.gain
    assert verdict.tolerance.gain <= 1.2e-4
    assert known.right.shape[2] * known.right.shape[3] == 4096


@pytest.mark.parametrize("values", ["plain", "bias", "hot_row"])
def test_one_wrong_row_head_or_element_fails(values: str) -> None:
    tensors = inputs.draw(Shape(2, 3, 300, 64), 4, "cpu", values)
    known, right = expected(*tensors), simulated(tensors)
    size = float(known.right.abs().max())
    for what, where in (("row", (1, 2, 299)), ("head", (0, 1))):
        wrong = right.clone()
        wrong[where] *= 1.002
        assert what in str(roundings.judge(wrong, known).fault), what
    wrong = right.clone()
    wrong[1, 1, 7, 5] += 0.01 * size
    assert "standard deviations" in str(roundings.judge(wrong, known).fault)


def test_bfloat16_where_half_precision_is_asked_for_fails() -> None:
    tensors = inputs.draw(Shape(1, 1, 64, 64), 5, "cpu")
    out = simulated(tensors)
    assert roundings.judge(out.bfloat16().double(), expected(*tensors)).fault is not None


def test_unwritten_outputs_are_counted_and_refused() -> None:
    tensors = inputs.draw(Shape(1, 1, 8, 64), 6, "cpu")
    known, out = expected(*tensors), simulated(tensors)
    out[0, 0, 1, 2], out[0, 0, 3, 3] = math.nan, math.inf
    verdict = roundings.judge(out, known)
    assert (verdict.error.nan, verdict.error.inf) == (1, 1)
    assert "1 NaN and 1 infinite" in str(verdict.fault)
    assert math.isfinite(verdict.error.max_err)
    everywhere = roundings.judge(torch.full_like(out, math.nan), known)
    assert everywhere.fault is not None
    assert everywhere.error.max_err == math.inf


@pytest.mark.parametrize("values", ["plain", "tiny", "hot_row", "bias", "negative"])
@pytest.mark.parametrize("qk", ["int8", "e4m3", "qk"])
def test_eight_bits_are_held_to_what_eight_bits_cost(qk: str, values: str) -> None:
    """The simulation of flashcore.quantisation passes; that of coarser operands does not, however small outputs are."""
    tensors = inputs.draw(Shape(1, 2, 256, 64), 8, "cpu", values)
    known = expected(*tensors, eight_bits=qk)
    scheme = quantisation.INT8 if qk == "qk" else quantisation.Scheme(qk)
    right = quantisation.attend(*(x[0] for x in tensors), scheme)[None]
    assert roundings.judge(right, known).fault is None
    wrong = right + 2 * (right - known.right)
    assert roundings.judge(wrong, known).fault is not None


@pytest.mark.parametrize(("qk", "seeds"), [("qk", (4, 11, 28)), ("e4m3", (38,))])
def test_a_rounded_key_is_the_same_for_all_rows(qk: str, seeds: tuple[int, ...]) -> None:
    """Where all Q point one way, its error moves all outputs alike: a right kernel was refused in one of four draws."""
    scheme = quantisation.INT8 if qk == "qk" else quantisation.Scheme(qk)
    for seed in seeds:
        tensors = inputs.draw(Shape(1, 4, 320, 64), seed, "cpu", "negative")
        right = quantisation.attend(*(x[0] for x in tensors), scheme)[None]
        assert roundings.judge(right, expected(*tensors, eight_bits=qk)).fault is None
