"""The public surface of Queen's Python SDK, read from the SDK itself, and who covers what of it.

A test says by name what it covers, `@covers("QueueBuilder.batch", "Stream.window_tumbling(grace_period)")`, and is
held to it: what it names must be called while it runs, or the test fails. `test_sdk_surface.py` compares all the names
with the surface, so a method or an option that a new version of the SDK brings fails there until it has a test.

Names are `Class.method`, `Class.method(option)` for a keyword, `function(option)`, and `QueueBuilder.config{key}` for
the keys of a dictionary of options.
"""

import functools
import inspect
import re

import pytest
import queen
from queen.admin import Admin
from queen.builders.consume_builder import ConsumeBuilder
from queen.builders.dlq_builder import DLQBuilder
from queen.builders.operation_builder import OperationBuilder
from queen.builders.push_builder import PushBuilder
from queen.builders.queue_builder import QueueBuilder
from queen.builders.transaction_builder import (
    TransactionBuilder,
    TransactionKvBuilder,
    TransactionQueueBuilder,
    TransactionTimerBuilder,
)
from queen.ephemeral import Ephemeral
from queen.kv import KV
from queen.locks import Lock, Locks
from queen.streams.helpers import rate_limiter
from queen.streams.operators.window_cron import WindowCronOperator
from queen.streams.operators.window_session import WindowSessionOperator
from queen.streams.operators.window_sliding import WindowSlidingOperator
from queen.streams.operators.window_tumbling import WindowTumblingOperator
from queen.streams.runtime.runner import Runner
from queen.streams.stream import Stream
from queen.timers import TimerBuilder, Timers

CLASSES = [
    queen.Queen,
    Admin,
    QueueBuilder,
    PushBuilder,
    ConsumeBuilder,
    OperationBuilder,
    DLQBuilder,
    TransactionBuilder,
    TransactionQueueBuilder,
    TransactionKvBuilder,
    TransactionTimerBuilder,
    KV,
    Timers,
    TimerBuilder,
    Locks,
    Lock,
    Ephemeral,
    Stream,
    Runner,
]
WINDOWS = {
    "Stream.window_tumbling": WindowTumblingOperator,
    "Stream.window_sliding": WindowSlidingOperator,
    "Stream.window_session": WindowSessionOperator,
    "Stream.window_cron": WindowCronOperator,
}
# Dictionaries of options: the method that takes one, and its documented keys.
DICTIONARIES = {
    "QueueBuilder.config": set(queen.QUEUE_DEFAULTS),
    "QueueBuilder.buffer": set(queen.BUFFER_DEFAULTS),
}
GATES = ("token_bucket_gate", "sliding_window_gate")

# What the test that runs has called so far.
_called = set()


def _keywords(function):
    """The optional parameters of a function; those that must be given are covered with it."""
    return {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


def _methods(cls):
    for name, value in vars(cls).items():
        if name == "__init__" or not name.startswith("_"):
            if callable(value) or isinstance(value, (classmethod, property)):
                yield name, value


def _plain(value):
    return value.__func__ if isinstance(value, classmethod) else value


def surface():
    """Every name that must be covered."""
    names = set()
    for cls in CLASSES:
        for method, value in _methods(cls):
            name = f"{cls.__name__}.{method}"
            if isinstance(value, property):
                names.add(name)
            elif method == "__init__":
                # Builders are made by others' methods; a client and its handles are made with options.
                if cls in (queen.Queen, Lock):
                    names |= {f"{cls.__name__}({keyword})" for keyword in _keywords(value)}
            else:
                names.add(name)
                names |= {f"{name}({keyword})" for keyword in _keywords(_plain(value))}
    for name, operator in WINDOWS.items():
        names |= {f"{name}({keyword})" for keyword in _keywords(operator.__init__)}
    # The options of a run are read one by one.
    for option in re.findall(r'opts(?:\.get\(|\[)"(\w+)"', inspect.getsource(Runner.__init__)):
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", option).lower()
        if snake not in ("stream", "query_id", "url"):
            names.add(f"Stream.run({snake})")
    for name, keys in DICTIONARIES.items():
        names |= {f"{name}{{{key}}}" for key in keys}
    for gate in GATES:
        names |= {gate} | {f"{gate}({keyword})" for keyword in _keywords(getattr(rate_limiter, gate))}
    return names


def _note(name, signature, arguments, keywords):
    _called.add(name)
    bound = signature.bind_partial(*arguments, **keywords).arguments
    for given, value in bound.items():
        if signature.parameters[given].kind is inspect.Parameter.VAR_KEYWORD:
            _called.update(f"{name}({option})" for option in value)
        else:
            _called.add(f"{name}({given})")
    if name in DICTIONARIES:
        _called.update(f"{name}{{{key}}}" for key in bound.get("options", {}))


def _watched(name, function):
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments, **keywords):
        _note(name, signature, arguments, keywords)
        return function(*arguments, **keywords)

    return call


def _watch():
    for cls in CLASSES:
        for method, value in list(_methods(cls)):
            name = cls.__name__ if method == "__init__" else f"{cls.__name__}.{method}"
            if isinstance(value, property):
                setattr(cls, method, property(_watched(name, value.fget), value.fset, value.fdel, value.__doc__))
            elif isinstance(value, classmethod):
                setattr(cls, method, classmethod(_watched(name, value.__func__)))
            else:
                setattr(cls, method, _watched(name, value))


SURFACE = surface()
_watch()
token_bucket_gate = _watched("token_bucket_gate", rate_limiter.token_bucket_gate)
sliding_window_gate = _watched("sliding_window_gate", rate_limiter.sliding_window_gate)


def covers(*names):
    """Marks a test as the one that covers these names, and checks that it calls each."""

    def mark(test):
        test.covers = {*getattr(test, "covers", ()), *names}
        return test

    return mark


@pytest.fixture(autouse=True)
def held_to_what_it_covers(request):
    _called.clear()
    yield
    missing = getattr(request.function, "covers", set()) - _called
    assert not missing, f"this test says that it covers what it never calls: {sorted(missing)}"
