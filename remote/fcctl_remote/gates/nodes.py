"""The nodes of a parsed gate expression."""

from dataclasses import dataclass
from typing import Any, List, Tuple, Union


@dataclass(frozen=True)
class Literal:
    value: Any


@dataclass(frozen=True)
class ListOf:
    items: Tuple["Node", ...]


@dataclass(frozen=True)
class Key:
    """``.name`` or ``["name"]``."""

    name: str


@dataclass(frozen=True)
class Index:
    number: int


@dataclass(frozen=True)
class Every:
    """``[*]``: from here on, each element."""


@dataclass(frozen=True)
class Where:
    """``[name="x", shape.S>=512]``: the elements for which all conditions hold."""

    conditions: Tuple[Tuple[Tuple[str, ...], str, Any], ...]


Part = Union[Key, Index, Every, Where]


@dataclass(frozen=True)
class Path:
    root: str
    parts: Tuple[Part, ...]
    text: str


@dataclass(frozen=True)
class Call:
    function: str
    args: Tuple["Node", ...]


@dataclass(frozen=True)
class Unary:
    op: str
    operand: "Node"


@dataclass(frozen=True)
class Binary:
    op: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True)
class Comparison:
    """``a < b <= c``: each neighbouring pair must hold."""

    operands: Tuple["Node", ...]
    ops: Tuple[str, ...]


Node = Union[Literal, ListOf, Path, Call, Unary, Binary, Comparison]


def mentions_document(node: Node) -> bool:
    """Whether any part of the expression comes from a document, rather than being written out in it."""
    found: List[str] = []
    collect_names(node, found)
    return bool(found)


def collect_names(node: Node, found: List[str]) -> None:
    """Append the top-level names that ``node`` reads, each once, in order of appearance."""
    if isinstance(node, Path) and node.root not in found:
        found.append(node.root)
    for child in _children(node):
        collect_names(child, found)


def _children(node: Node) -> Tuple[Node, ...]:
    if isinstance(node, ListOf):
        return node.items
    if isinstance(node, Call):
        return node.args
    if isinstance(node, Unary):
        return (node.operand,)
    if isinstance(node, Binary):
        return (node.left, node.right)
    return node.operands if isinstance(node, Comparison) else ()
