"""What a step wrote and the host program passes on: the controller's parser, which is strict, reads all of it."""

from __future__ import annotations

from typing import Any

import pytest

from fcctl_remote.base.strict_json import MAX_NESTED, parse_json, to_strict_json
from orchestrator.base import json_text


@pytest.mark.parametrize(
    ("text", "arrives"), [("\ud800", "?"), ("a\udcffb", "a?b"), ("\udc00\ud800", "??"), ("ä😀\0\u2028", "ä😀\0\u2028")]
)
def test_any_text_arrives(text: str, arrives: str) -> None:
    assert json_text.loads(to_strict_json({text: [text]})) == {arrives: [arrives]}


def nested(depth: int) -> Any:
    value: Any = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value, "b": 1}
    return value


def test_what_is_nested_too_deep_for_the_controller_is_refused() -> None:
    within = to_strict_json(nested(MAX_NESTED))
    assert parse_json(within) == nested(MAX_NESTED)
    assert json_text.loads(to_strict_json([[[[[[[[nested(MAX_NESTED)]]]]]]]])) is not None, "as a part of a reply"
    for depth in (MAX_NESTED + 1, 300):
        with pytest.raises(ValueError, match="nested too deep"):
            parse_json(to_strict_json(nested(depth)))
    for data in (b"[" * 300 + b"]" * 300, b"[" * 100_000):
        with pytest.raises(ValueError, match=r"nested too deep|Expecting"):
            parse_json(data)
    with pytest.raises(ValueError, match="nested too deep"):
        to_strict_json(nested(100_000))
