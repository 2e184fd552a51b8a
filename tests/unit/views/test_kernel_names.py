from __future__ import annotations

from orchestrator.views.blocks import apart


def test_forty_kernels_of_one_template_are_told_apart_by_what_differs() -> None:
    long = "void flash::attention_forward_kernel<cutlass::half_t, Layout<Shape<_64, _128>>, {}, 64, {}>(Params)"
    names = [long.format(tile, str(masked).lower()) for tile in range(20) for masked in (False, True)]
    short = apart(names, 60)
    assert len(set(short)) == 40
    assert short[1] == "void flash::attention_forward_kernel<..., 0, true>"
    assert max(map(len, short)) <= 60


def test_other_names_stay_and_keep_their_end() -> None:
    assert apart(["a", "b<1>", "a"], 44) == ["a", "b<1>", "a"]
    assert apart(["k<1>", "k<1, 2>"], 44) == ["k<1>", "k<1, 2>"], "another number of arguments"
    assert apart(["k<f<1, 2>(3)>", "k<f<1, 3>(3)>"], 44) == ["k<f<1, 2>(3)>", "k<f<1, 3>(3)>"]
    (cut,) = apart(["x" * 100 + "_last"], 20)
    assert len(cut) == 20
    assert cut.endswith("_last")
    assert apart(["k<\x1b[31m, 1>", "k<\x1b[31m, 2"], 44) == ["k<..., 1>", "k<..., 2>"]
