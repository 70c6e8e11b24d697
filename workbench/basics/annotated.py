"""Arguments of public functions, held against their annotations: what does not fit is refused by its name, before anything
is done with it.

An annotation is read as far as it can be here: a name that was imported for type checkers only is that of one of our
classes if it was imported elsewhere, else anything. Whatever is of a class of the user's may stand in for one of ours
(what it then lacks is said when it is missed); a plain value of Python's may not, nor one of ours for another one of
ours. An array, a column of a table or a scalar of numpy, pandas or torch is taken as the list or the number that it
holds (its `tolist()`), where that is what fits; a text or a number of another class as Python's own.
"""

from __future__ import annotations

import builtins
import errno
import functools
import inspect
import itertools
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Number, Real
from pathlib import Path
from typing import Any

from workbench.basics.settings import MOST_WHOLE
from workbench.values.errors import DataError, WorkbenchError, own_line, shortened, where_raised

# Whose values are no stand-ins for ours: Python's own library, and those of numbers and tables.
_LIBRARY = (sys.stdlib_module_names - {"types", "unittest"}) | {"numpy", "pandas", "torch"}
FIRST_PARTS = 8  # of a list that are looked at, to say what an error comes from
# Methods of a value that say what it is, and change nothing.
_LOOKS = frozenset(
    f"__{name}__" for name in "repr str format eq ne lt le gt ge hash len bool".split()
)
LONGEST_NAME = 255  # bytes of a file's name
_ANYTHING = (Any, object, typing.Hashable)
_UNIONS = (typing.Union, types.UnionType)
_HELD = (str, bytes, bytearray, Number, list, tuple, dict, set, frozenset)


def checked(name: str, function: Callable) -> Callable:
    """The public function `name`, or the method `Class.name`, which refuses arguments that are not what it says it takes
    (DataError)."""
    signature = inspect.signature(function)
    name = name if "." in name else f"wb.{name}"
    hints = _Hints(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for parameter, value in _given(signature, dict(bound.arguments)):
            annotation = signature.parameters[parameter].annotation
            hint = hints.of(annotation)
            wanted = f"{name} takes {parameter} as {_words(annotation)}"
            try:
                right = fits(value, hint)
                as_ours = _as_ours(value, hint, wanted) if right else value
            except Exception as error:
                raise unreadable(name, parameter, value, error) from error
            if not right:
                raise DataError(f"{wanted}, got {shown(value)}")
            if bound.arguments[parameter] is value:
                bound.arguments[parameter] = as_ours
        try:
            return function(*bound.args, **bound.kwargs)
        except Exception as error:
            if isinstance(error, WorkbenchError):
                raise
            if looked := _look_that_raised(error):
                raise DataError(f"{name} cannot look at what it was handed: {looked}") from error
            if own_line(error):
                raise
            if handed := _what_it_was(error, bound.arguments):
                raise DataError(f"{name} was handed {handed}") from error
            raise

    return call


def checked_methods(cls: type) -> type:
    """The class, whose public methods that take something refuse what they do not take, as `checked` functions do."""
    for name, member in list(vars(cls).items()):
        function = getattr(member, "__func__", member)  # of a class method
        if name[0] == "_" or not inspect.isfunction(function):
            continue
        if len(inspect.signature(function).parameters) > 1:  # `self` is one
            guarded = checked(f"{cls.__name__}.{name}", function)
            setattr(cls, name, guarded if function is member else type(member)(guarded))
    return cls


def _look_that_raised(error: Exception) -> str:
    """What is said of an error that a method of the user's own raised which only looks at a value (`__repr__`, `__eq__`,
    `__len__` ...): "" for any other. What the caller hands over to be called raises what it likes."""
    line = own_line(error)
    if line is None or line.name not in _LOOKS:
        return ""
    return f"its {line.name} ended in {type(error).__name__}: {error} ({where_raised(error)})"


def _what_it_was(error: Exception, arguments: Mapping[str, Any]) -> str:
    """What was handed over, in words, that an error out of the depth comes from; "" where nothing says so."""
    if isinstance(error, (RecursionError, MemoryError)):
        return "something too large, nested too deeply, or in itself"
    if is_of_a_file_name(error):
        return f"what no file is called: {shown(getattr(error, 'filename', error))}"
    foreign = [
        f"{name} = {shown(value)}" for name, value in arguments.items() if _holds_foreign(value)
    ]
    if not foreign or not isinstance(error, (AttributeError, TypeError, LookupError)):
        return ""
    words = f"{type(error).__name__}: {error} ({where_raised(error)})"
    return f"{' and '.join(foreign)}, of a class that is not known here, and ended in {words}"


def is_of_a_file_name(error: BaseException) -> bool:
    """Whether a name is too long, or a link that leads to itself: only one that the user gave can be. Of links in a circle
    `Path.resolve` raises a RuntimeError; from Python 3.13 on it says nothing."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
    return isinstance(error, RuntimeError) and str(error).startswith("Symlink loop")


def _holds_foreign(value: Any) -> bool:
    """Whether it is of a class of the user's, or a list that begins with some."""
    held = value.tolist() if type(value).__module__ == "numpy" else value
    parts = held[:FIRST_PARTS] if type(held) in (list, tuple) else ()
    return _is_foreign(value) or any(map(_is_foreign, parts))


def unreadable(name: str, parameter: str, value: Any, error: Exception) -> DataError:
    """What is said of an argument that raises when it is looked at: its class has a method that does, or it refers to
    something that is gone, or its numbers are nowhere."""
    return DataError(
        f"{name} cannot look at {parameter} = {shown(value)}: that ended in {type(error).__name__}: {error}"
    )


def shown(value: Any) -> str:
    """Value and type of an argument, cut."""
    return f"{shortened(value)} ({type(value).__name__})"


def _given(signature: inspect.Signature, arguments: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """(parameter, value) of what was handed over; of those that take several, one by one."""
    for parameter, value in arguments.items():
        kind = signature.parameters[parameter].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((parameter, one) for one in value)
        elif kind is not inspect.Parameter.VAR_KEYWORD:
            default = signature.parameters[parameter].default
            # What it has without being handed over is right.
            if value is not default:
                yield parameter, value


class _Names(dict):
    """What the names in an annotation stand for. `is_final`: all are known, so that it stands for the same always."""

    def __init__(self, function: Callable) -> None:
        super().__init__(vars(builtins) | inspect.unwrap(function).__globals__)
        self.is_final = True

    def __missing__(self, name: str) -> Any:
        self.is_final = False
        for module in ("workbench.run.store", "workbench.training.session", "workbench.values"):
            if hasattr(sys.modules.get(module), name):
                return getattr(sys.modules[module], name)
        return Any


class _Hints:
    """What the annotations of a function say, each read once."""

    def __init__(self, function: Callable) -> None:
        self._function = function
        self._known: dict[str, Any] = {}

    def of(self, annotation: Any) -> Any:
        if not isinstance(annotation, str):
            return annotation if annotation is not inspect.Parameter.empty else Any
        if annotation not in self._known:
            names = _Names(self._function)
            hint = _evaluated(annotation, names)
            if not names.is_final:
                return hint
            self._known[annotation] = hint
        return self._known[annotation]


def _evaluated(annotation: str, names: _Names) -> Any:
    try:
        return eval(annotation, {"__builtins__": {}}, names)
    except (TypeError, AttributeError, SyntaxError):
        return Any


def _words(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "said")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says, or holds it (`tolist()`). Of what is inside of lists, tuples and mappings
    the first level is looked at."""
    if _fits_as_it_is(value, hint):
        return True
    listed = getattr(value, "tolist", None)
    held = listed() if callable(listed) else None
    # A date of numpy's that is none holds None, and is not what may be left out.
    return held is not None and _fits_as_it_is(held, hint)


def _fits_as_it_is(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    inner = typing.get_args(hint)
    if origin in _UNIONS:
        some = type(value) in inner and _fits_as_it_is(value, type(value))
        some = some or any(_fits_as_it_is(value, choice) for choice in inner)
        return some and _may_be_a_name(value, inner)
    if origin is types.NoneType or origin is None:
        return value is None
    if origin in _ANYTHING or not isinstance(origin, type):
        return True
    if getattr(origin, "_is_protocol", False):
        return _fits_protocol(value, origin)
    if origin is int:
        return _is_number(value, Integral) and abs(value) <= MOST_WHOLE
    if origin is float:
        return _is_number(value, Real) and not math.isnan(value)
    if origin is str:
        return isinstance(value, str) and _is_text(value)
    if origin is Callable:
        return callable(value)
    if issubclass(origin, os.PathLike):
        return isinstance(value, os.PathLike) and _is_path_of_text(os.fspath(value))
    if not isinstance(value, origin):
        return _is_ours(origin) and _is_foreign(value)
    return _parts_fit(value, origin, inner)


def _fits_protocol(value: Any, protocol: type) -> bool:
    """Whether it has what a protocol names (some of it, where it is of a class of the user's), its texts and numbers of the
    right kind: a mock has everything, and nothing of it ends."""
    names = [name for name in (*protocol.__annotations__, *vars(protocol)) if name[0] != "_"]
    some = any if _is_foreign(value) else all
    if names and not some(hasattr(value, name) for name in names):
        return False
    own = {name: getattr(value, name) for name in _plain_parts(protocol) if hasattr(value, name)}
    return all(fits(part, _plain_parts(protocol)[name]) for name, part in own.items())


@functools.cache
def _plain_parts(protocol: type) -> dict[str, type]:
    """The attributes that a protocol annotates as a text or a number, with their types."""
    plain = {kind.__name__: kind for kind in (str, int, float, bool)}
    by_name = protocol.__annotations__.items()
    return {name: plain[hint] for name, hint in by_name if hint in plain}


def _is_text(value: str) -> bool:
    """Whether it can be written: no half of a character, which is no text, and no zero byte, which ends one."""
    return "\0" not in value and value.encode("utf-8", "ignore").decode() == value


def _is_path_of_text(path: str | bytes) -> bool:
    return isinstance(path, str) and "\0" not in path


def _may_be_a_name(value: Any, choices: tuple[Any, ...]) -> bool:
    """Whether a text in the place of a path has parts that a file could be called."""
    kinds = [typing.get_origin(choice) or choice for choice in choices]
    if not isinstance(value, str) or not {os.PathLike, Path} & {*kinds}:
        return True
    return may_be_a_path(value)


def may_be_a_path(text: str) -> bool:
    """Whether a file could be called so."""
    parts = text.encode("utf-8", "surrogatepass").split(b"/")
    return "\0" not in text and all(len(part) <= LONGEST_NAME for part in parts)


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_plain(value: Any) -> bool:
    """Whether it is a value of Python's own library, an array, or a text, a number or what holds others of any class, and so
    no stand-in for another one. A tuple with named fields may be."""
    kind = type(value)
    if isinstance(value, _HELD) and not hasattr(kind, "_fields"):
        return True
    return hasattr(kind, "tolist") or _package_of(kind) in _LIBRARY


def _is_foreign(value: Any) -> bool:
    """Whether it is of a class of the user's, which may stand in for one of ours."""
    return not (_is_plain(value) or _is_ours(type(value)))


class _AsManyAsItSays(Sequence):
    """A sequence of a class of the user's, which may make its parts when they are asked for: no more of them are asked for
    than it says it has, and one that does not fit is refused (DataError) as it comes."""

    def __init__(self, inside: Sequence, hint: Any, wanted: str) -> None:
        self._inside = inside
        self._hint = hint
        self._wanted = wanted

    def __len__(self) -> int:
        return len(self._inside)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        part = self._inside[index]
        if not _part_fits(part, self._hint):
            raise DataError(f"{self._wanted}, got {shown(part)} in it")
        return part


def _parts_asked(hint: Any) -> Any:
    """What an annotation, or one of its choices, says of the parts of a `Sequence`; None: it says `Sequence` nowhere."""
    origin = typing.get_origin(hint) or hint
    if origin in _UNIONS:
        asked = map(_parts_asked, typing.get_args(hint))
        return next((parts for parts in asked if parts is not None), None)
    return (typing.get_args(hint) or (Any,))[0] if origin is Sequence else None


def _as_ours(value: Any, hint: Any, wanted: str) -> Any:
    """An argument that fits, as a function of this package takes it. `wanted`: what is said where a part of it does not fit."""
    if isinstance(value, Sequence) and _is_foreign(value):
        parts = _parts_asked(hint)
        return value if parts is None else _AsManyAsItSays(value, parts, wanted)
    return _python_s_own(value, hint)


def _python_s_own(value: Any, hint: Any) -> Any:
    """An argument that fits, as Python's own text, number or list: views and files know no others."""
    if not _fits_as_it_is(value, hint):
        return value.tolist()
    kind = next((kind for kind in (str, int, float) if isinstance(value, kind)), None)
    if kind is None and isinstance(value, Real) and hint not in _ANYTHING:
        # A fraction, a number of numpy's: no format writes it as one, and it is no instance of Python's.
        return int(value) if isinstance(value, Integral) else float(value)
    if kind is None or isinstance(value, bool):
        return value
    return kind.__getnewargs__(value)[0]


def _is_ours(kind: type) -> bool:
    return _package_of(kind) == "workbench"


def _package_of(kind: type) -> str:
    """The first part of its module's name; a class may have been given none."""
    return str(kind.__module__).partition(".")[0]


def _parts_fit(value: Any, origin: type, inner: tuple[Any, ...]) -> bool:
    if issubclass(origin, Mapping) and len(inner) == 2:
        some = itertools.islice(value.items(), len(value))  # as many as it says it has
        return all(fits(key, inner[0]) and _part_fits(part, inner[1]) for key, part in some)
    if issubclass(origin, tuple) and inner and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(_part_fits, value, inner))
    if not issubclass(origin, Sequence) or not inner:
        return True
    if isinstance(value, (str, bytes)):
        return isinstance(value, str) and inner[0] is str
    # Sequences of other classes may make their parts when they are asked for; Python's own show the first.
    parts = value if isinstance(value, (list, tuple)) else itertools.islice(value, _is_plain(value))
    return all(_part_fits(part, inner[0]) for part in parts)


def _part_fits(value: Any, hint: Any) -> bool:
    """As `fits`; among several numbers true and false are 1 and 0, as a success of each task is."""
    return fits(value, hint) or (hint is float and fits(value, bool))
