"""The two processes of `hubmerge.evaluation.sandbox`: started as a script, confined before either runs anything.

    tests      executes the tests; a name that they do not define themselves is the solution's, and stands for it
    solution   executes the generated code, then answers: the value of a name, the result of a call

Foreign code runs in the solution's process alone. Its answers are text, which is read as plain values of Python's own
types, one of these types, or the number of an object that stays there. So foreign code cannot decide a comparison,
replace a builtin, or reach the pipe that carries the verdict. A name of Python's builtins is always Python's.
"""

import base64
import builtins
import importlib
import json
import os
import sys
import types
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

_MAX_MESSAGE_BYTES = 64 << 20


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    sys.path.insert(0, job["package_root"])
    from hubmerge.errors import DeviceError
    from hubmerge.evaluation.sandbox_rules import isolate
    from hubmerge.isolation.confinement import Limits

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        isolate(Limits(**job["limits"]), readable=job["readable"], parent=job["parent"])
    except (DeviceError, OSError) as error:
        sys.exit(str(error))
    sys.path.remove(job["package_root"])
    os.environ.pop("LD_LIBRARY_PATH", None)
    for name in [name for name in sys.modules if name.split(".")[0] == "hubmerge"]:
        del sys.modules[name]
    # without `site` these are missing, and with it they are the same
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    sys.set_int_max_str_digits(0)
    channel = Channel(job["reading_fd"], job["writing_fd"])
    if job["role"] == "solution":
        Solution(channel).serve(job["units"])
    else:
        _test(channel, job["tests"], job["given"], job["verdict_fd"])


# --- the tests' side ---------------------------------------------------------------------------------------


def _test(channel: "Channel", tests: str, given: str, verdict_fd: int) -> None:
    try:
        assert channel.receive() == ["ready"]
        os.write(verdict_fd, b"ready\n")
        solution = Asked(channel)
        names = _Names(solution, solution.loaded(), given=given)
        exec(compile(tests, "<tests>", "exec", dont_inherit=True), names)  # noqa: S102
    except BaseException:  # noqa: BLE001 a test may raise anything, and so may the solution's answer
        os._exit(1)
    os.write(verdict_fd, b"passed")
    os._exit(0)


class _Names(dict[str, Any]):
    """The tests' module: their own names, then Python's, then the solution's."""

    def __init__(self, solution: "Asked", theirs: list[str], **own: str) -> None:
        super().__init__(__name__="tests", __builtins__=builtins, **own)
        self._solution = solution
        self._theirs = frozenset(theirs) - set(vars(builtins))

    def __missing__(self, name: str) -> Any:
        if name not in self._theirs:
            raise KeyError(name)
        return self._solution.ask("name", name)


class Asked:
    """The solution as the tests' process asks it."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._objects: dict[int, _Elsewhere] = {}

    def loaded(self) -> list[str]:
        """The names that the solution defines, once its code has come to its end."""
        return [str(name) for name in self._answer(self._channel.receive())]

    def ask(self, action: str, *arguments: Any) -> Any:
        self._channel.send([action, *(self._sent(argument) for argument in arguments)])
        return self._answer(self._channel.receive())

    def _sent(self, value: Any) -> Any:
        if isinstance(value, _Elsewhere):
            return {"object": value._number}
        return encode(value, self._sent)

    def _answer(self, message: Any) -> Any:
        kind, content = message
        if kind == "raised":
            raise _raised(*map(str, content))
        return self._received(content)

    def _received(self, value: Any) -> Any:
        if isinstance(value, dict) and "object" in value:
            number = int(value["object"])
            return self._objects.setdefault(number, _Elsewhere(self, number))
        if isinstance(value, dict) and "module" in value:
            name = str(value["module"])
            if name.partition(".")[0] not in sys.stdlib_module_names:
                raise ImportError(name)
            return importlib.import_module(name)
        return decode(value, self._received)


def _raised(name: str, text: str) -> Exception:
    """The solution's exception as tests can tell it: a class of Python's own, or the class's name, and the text."""
    found = getattr(builtins, name, None)
    kind = found if isinstance(found, type) and issubclass(found, Exception) else Exception
    if issubclass(kind, UnicodeError):  # these want to be told more
        kind = ValueError
    error: Exception = type(name[:80], (kind,), {"__str__": lambda self: text})(text)
    return error


def _asking(action: str) -> Callable[..., Any]:
    """A method of an object elsewhere, which asks for this action on it."""
    return lambda self, *arguments: self._solution.ask(action, self, *arguments)


class _Elsewhere:
    """An object that stayed in the solution's process. It equals nothing but itself."""

    _solution: Asked
    _number: int

    def __init__(self, solution: Asked, number: int) -> None:
        vars(self).update(_solution=solution, _number=number)

    __getattr__ = _asking("attribute")
    __setattr__ = _asking("set")
    __getitem__ = _asking("item")
    __len__ = _asking("length")
    __bool__ = _asking("truth")
    __iter__ = _asking("iterator")
    __str__ = _asking("text")

    def __contains__(self, value: Any) -> bool:
        return self._solution.ask("contains", self, value) is True

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._solution.ask("call", self, list(arguments), named)

    def __next__(self) -> Any:
        found = self._solution.ask("next", self)
        if not found:
            raise StopIteration
        return found[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Elsewhere) and other._number == self._number

    def __hash__(self) -> int:
        return hash(self._number)


# --- the solution's side -----------------------------------------------------------------------------------


class Solution:
    """Generated code in a module of its own, and what it is asked for. Nothing here is out of that code's reach."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._module = types.ModuleType("solution")
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._actions: dict[str, Callable[..., Any]] = {
            "name": lambda name: vars(self._module)[name],
            "call": lambda what, arguments, named: what(*arguments, **named),
            "attribute": getattr,
            "set": setattr,
            "item": lambda what, key: what[key],
            "contains": lambda what, value: bool(value in what),
            "length": len,
            "truth": bool,
            "iterator": iter,
            "next": lambda iterator: list(islice(iterator, 1)),  # an empty list at the end
            "text": str,
        }

    def serve(self, units: list[str]) -> None:
        self._channel.send(["ready"])
        sys.modules["solution"] = self._module
        sys.argv = ["solution.py"]
        self._answer(self._load, units)
        while True:
            try:
                action, *arguments = self._channel.receive()
            except EOFError:
                os._exit(0)
            self._answer(self._act, action, arguments)

    def _act(self, action: str, arguments: list[Any]) -> Any:
        return self._actions[action](*map(self._received, arguments))

    def _load(self, units: list[str]) -> list[str]:
        for number, source in enumerate(units):
            exec(compile(source, f"<unit {number}>", "exec", dont_inherit=True), vars(self._module))  # noqa: S102
        return [name for name in vars(self._module) if isinstance(name, str) and not name.startswith("__")]

    def _answer(self, make: Callable[..., Any], *arguments: Any) -> None:
        try:
            answer = ["value", self._sent(make(*arguments))]
        except BaseException as error:  # noqa: BLE001 the foreign code may raise anything, SystemExit included
            answer = ["raised", [type(error).__name__, _text_of(error)]]
        self._channel.send(answer)

    def _sent(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in sys.stdlib_module_names:
            return {"module": value.__name__}
        try:
            return encode(value, self._sent)
        except TypeError:
            number = self._numbers.setdefault(id(value), len(self._objects))
            if number == len(self._objects):
                self._objects.append(value)  # and so it lives on, and its id stays its own
            return {"object": number}

    def _received(self, value: Any) -> Any:
        if isinstance(value, dict) and "object" in value:
            return self._objects[value["object"]]
        return decode(value, self._received)


# --- between them ------------------------------------------------------------------------------------------

_SEQUENCES: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_PLAIN: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "float": (float, float.hex, float.fromhex),
    "complex": (complex, lambda z: [z.real.hex(), z.imag.hex()], lambda p: complex(*map(float.fromhex, p))),
    "bytes": (bytes, lambda b: base64.b64encode(b).decode(), base64.b64decode),
    "bytearray": (bytearray, lambda b: base64.b64encode(b).decode(), lambda t: bytearray(base64.b64decode(t))),
    "range": (range, lambda r: [r.start, r.stop, r.step], lambda p: range(*p)),
    "Decimal": (Decimal, str, Decimal),
    "Fraction": (Fraction, lambda f: [f.numerator, f.denominator], lambda p: Fraction(*p)),
}
_TYPES = {kind.__name__: kind for kind in vars(builtins).values() if isinstance(kind, type)}


def encode(value: Any, inner: Callable[[Any], Any]) -> Any:
    """`value` as JSON; TypeError where it is of no type of Python's own. A subclass becomes its plain base."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    for name, (kind, to, _) in _PLAIN.items():
        if isinstance(value, kind):
            return {name: to(value)}
    for name, made in _SEQUENCES.items():
        if isinstance(value, made):
            return {name: [inner(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[inner(key), inner(each)] for key, each in value.items()]}
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return {"type": value.__name__}
    raise TypeError(f"{type(value).__name__} stays where it is")


def decode(value: Any, inner: Callable[[Any], Any]) -> Any:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("no value")
        return value
    ((name, content),) = value.items()
    if name == "dict":
        return {inner(key): inner(each) for key, each in content}
    if name in _PLAIN:
        return _PLAIN[name][2](content)
    if name == "type":
        return _TYPES[content]
    return _SEQUENCES[name]([inner(each) for each in content])


class Channel:
    """Messages of JSON over two pipes. `receive` raises EOFError once the other side is gone."""

    def __init__(self, reading_fd: int, writing_fd: int) -> None:
        self._reading = Connection(reading_fd, writable=False)
        self._writing = Connection(writing_fd, readable=False)

    def send(self, message: Any) -> None:
        self._writing.send_bytes(json.dumps(message).encode())

    def receive(self) -> Any:
        return json.loads(self._reading.recv_bytes(_MAX_MESSAGE_BYTES))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 its own __str__ is foreign code too
        return ""


if __name__ == "__main__":
    main()
