"""Classes that are only typed fields, to and from JSON: what ``dataclasses`` does, at a fraction of its time.

Every process of a run imports these classes. ``dataclasses`` imports ``inspect`` and compiles methods for each class,
``typing`` evaluates each annotation; both took most of a start. Here annotations stay text until a class is decoded.
"""

from __future__ import annotations

import sys
from _thread import RLock
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field
    from dataclasses import field as field  # noqa: PLC0414
    from typing import Any as Any  # noqa: PLC0414
    from typing import ClassVar, TypeVar, dataclass_transform

    T = TypeVar("T")
    Reader = Callable[[Any, str], Any]
else:
    Any = object

    class field:  # noqa: N801 - it stands in for that of dataclasses
        def __init__(self, default_factory):
            self.default_factory = default_factory

    def dataclass_transform(**_):
        return lambda cls: cls


#: Held while a class becomes a dataclass; the conversion of a class asks for that of its base.
_CONVERTING = RLock()


class WireError(ValueError):
    """A value does not have the shape of its class."""


class _RecordType(type):
    __factories__: dict[str, Callable[[], Any]]

    def __getattr__(cls, name: str) -> Any:
        """Become a dataclass for who asks: pydantic on the controller, ``dataclasses.replace``."""
        if name not in ("__dataclass_fields__", "__dataclass_params__"):
            raise AttributeError(name)
        import dataclasses
        import typing

        with _CONVERTING:  # else a second thread changes the class while ``dataclass`` iterates over it
            if "__dataclass_fields__" not in vars(cls):
                vars(sys.modules[cls.__module__])["Any"] = typing.Any
                for each, factory in cls.__factories__.items():
                    setattr(cls, each, dataclasses.field(default_factory=factory))
                made: type = cls
                dataclasses.dataclass(init=False, repr=False, eq=False)(made)
        return vars(cls)[name]


@dataclass_transform(field_specifiers=(field,))
class Record(metaclass=_RecordType):
    """The base: a subclass lists its fields as ``name: type = default``, as for a dataclass.

    Types are ``str``, ``int``, ``float``, ``bool``, ``Any``, another record, ``list[T]``, ``dict[str, T]`` and
    ``T | None``.
    """

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
        __names__: ClassVar[tuple[str, ...]]
        __factories__: ClassVar[dict[str, Callable[[], Any]]]
    else:
        __names__ = ()

        def __init__(self, *args, **kwargs):
            cls, own = type(self), self.__dict__
            own.update(zip(cls.__names__, args))  # noqa: B905 - strict= is newer than Python 3.8
            for name in cls.__names__[len(args) :]:
                if name in kwargs:
                    own[name] = kwargs.pop(name)
                elif name in cls.__factories__:
                    own[name] = cls.__factories__[name]()
                elif name in cls.__defaults__:
                    own[name] = cls.__defaults__[name]
                else:
                    raise TypeError("%s() lacks %r" % (cls.__name__, name))
            if kwargs or len(args) > len(cls.__names__):
                raise TypeError("%s() takes no %s" % (cls.__name__, sorted(kwargs) or "more than its fields"))

        def __init_subclass__(cls):
            names = cls.__names__ = tuple(cls.__annotations__)
            given = {name: vars(cls)[name] for name in names if name in vars(cls)}
            cls.__factories__ = {name: one.default_factory for name, one in given.items() if isinstance(one, field)}
            cls.__defaults__ = {name: one for name, one in given.items() if name not in cls.__factories__}
            cls.__readers__ = None  # made when it is first decoded
            for name in cls.__factories__:
                delattr(cls, name)

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a record can be changed

    def __repr__(self) -> str:
        return "%s(%s)" % (type(self).__name__, ", ".join("%s=%r" % item for item in self.__dict__.items()))


def encode(value: Any) -> Any:
    """A record (or a list or dict of them) as plain JSON values."""
    if isinstance(value, Record):
        return {name: encode(getattr(value, name)) for name in type(value).__names__}
    if isinstance(value, dict):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    return value


def decode(cls: type[T], value: Any, where: str = "") -> T:
    """Build a record from JSON values. Unknown keys are ignored, so that a newer peer can add some. Raises WireError: a
    key is missing or has the wrong type; the message names its path."""
    record: Any = cls
    if not isinstance(value, Mapping):
        raise WireError("%s: expected an object, got %s" % (where or cls.__name__, type(value).__name__))
    if record.__readers__ is None:
        names = {**vars(sys.modules[cls.__module__]), **_SCALARS}
        record.__readers__ = {name: _reader(text, names) for name, text in cls.__annotations__.items()}
    values = {}
    for name, read in record.__readers__.items():
        path = "%s.%s" % (where or cls.__name__, name)
        if name in value:
            values[name] = read(value[name], path)
        elif name not in record.__defaults__ and name not in record.__factories__:
            raise WireError("%s: missing" % path)
    return cls(**values)


def _reader(text: str, names: Mapping[str, Any]) -> Reader:
    """What checks and converts a value of the type that an annotation names."""
    if text.endswith(" | None"):
        some = _reader(text[: -len(" | None")], names)
        return lambda value, path: None if value is None else some(value, path)
    if text.startswith("list["):
        item = _reader(text[len("list[") : -1], names)
        return lambda value, path: [
            item(each, "%s[%d]" % (path, i)) for i, each in enumerate(_checked(list, "a list", value, path))
        ]
    if text.startswith("dict[str, "):
        item = _reader(text[len("dict[str, ") : -1], names)
        return lambda value, path: {
            str(k): item(each, "%s.%s" % (path, k)) for k, each in _checked(dict, "an object", value, path).items()
        }
    if text == "Any":
        return lambda value, _path: value
    parts = text.split(".")
    cls = names[parts[0]]
    for part in parts[1:]:
        cls = getattr(cls, part)
    if issubclass(cls, Record):
        return lambda value, path: decode(cls, value, path)
    return lambda value, path: _scalar(cls, value, path)


_SCALARS = {"str": str, "int": int, "float": float, "bool": bool}


def _scalar(cls: type, value: Any, path: str) -> Any:
    if cls is float and type(value) is int:
        return float(value)
    return _checked(cls, cls.__name__, value, path, isinstance(value, bool) and cls is not bool)


def _checked(cls: type, shown: str, value: Any, path: str, wrong: bool = False) -> Any:
    if wrong or not isinstance(value, cls):
        raise WireError("%s: expected %s, got %s" % (path, shown, type(value).__name__))
    return value
