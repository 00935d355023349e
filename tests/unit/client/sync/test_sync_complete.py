"""``onewriter.sync`` has every member of the asynchronous classes, or this file states why not."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pytest

import onewriter
import onewriter.state
import onewriter.sync
from onewriter.state.watch import Watch
from onewriter.sync._facade import Facade, async_class_of

BLOCKING = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__await__": "wait",
}
"""What stands for what Python calls by itself."""

WITHOUT_SIBLING = {
    "CheckpointStore": "where SharedState keeps its checkpoints; nothing of it is called by programs",
    "MemoryLog": "the log for tests of asynchronous programs, in their own loop",
}

SPARED: dict[str, dict[str, Sequence[str]]] = {
    "Client": {"runs work of the SDK's own in the client's loop": ["spawn"]},
    "Producer": {
        "what its tenure and its connection tell it": [
            "changed",
            "ended_with",
            "granted",
            "pump",
            "queue_changed",
            "received",
            "send_refused",
            "writable",
        ],
        "for transactions and seals, which have siblings": [
            "join_queue",
            "linked",
            "pack",
            "written",
        ],
        "submit, for rooms of the SDK": ["take"],
    },
    "Guarded": {"submit, for rooms of the SDK": ["take"]},
    "Leadership": {
        "submit, for rooms of the SDK": ["take"],
        "how Lead tells it who led before": ["follow"],
    },
    "Consumer": {
        "what its stream asks and tells it": [
            "attached",
            "chunk_begun",
            "chunks_given_up",
            "handed_out",
            "subscribe_command",
            "wants",
        ]
    },
    "Ownership": {
        "what its connection and its Ownerships tell it": [
            "address",
            "give",
            "given",
            "on_owner_detached",
            "on_ownership_lost",
            "stop",
        ]
    },
    "Ownerships": {
        "what the client and its members have it do": [
            "abandon",
            "ask",
            "requester",
            "changed",
            "detached",
            "confirm",
            "keep",
            "serve",
        ]
    },
    "SharedState": {"what watches and maps are built on": ["listen", "present", "unlisten"]},
    "SharedMap": {"a map in memory lives in the loop of the test that made it": ["in_memory"]},
}

OF_OTHER_PARAMETERS = {
    "Loss.wait": "async with asyncio.timeout has no blocking sibling, so it takes timeout_seconds",
    "Client.start_producer": "on_change is told of producers that block",
    "Client.create_producer": "on_change is told of producers that block",
}


def public_names(kind: type) -> set[str]:
    """What a program can name: of the class, and of what its methods set."""
    found = set()
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] != "onewriter":
            continue
        found |= {name for name in vars(each) if name in BLOCKING or not name.startswith("_")}
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(each)))):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    found |= set() if name.startswith("_") else {name}
                case _:
                    pass
    return found


def is_asynchronous(kind: type) -> bool:
    values = [inspect.getattr_static(kind, name, None) for name in public_names(kind)]
    return any(
        name in BLOCKING or inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)
        for name, value in zip(public_names(kind), values, strict=True)
    )


def asynchronous_classes() -> Iterator[type]:
    for module in (onewriter, onewriter.state):
        for name in module.__all__:
            value = getattr(module, name)
            if (
                inspect.isclass(value)
                and value.__module__.startswith("onewriter")
                and Protocol not in value.__bases__
                and is_asynchronous(value)
            ):
                yield value
    yield Watch  # SharedMap.watch gives it


CLASSES = {kind.__name__: kind for kind in asynchronous_classes()}
FACADES = {
    name: value
    for name in onewriter.sync.__all__
    if issubclass(value := getattr(onewriter.sync, name), Facade)
}


def test_every_asynchronous_class_has_a_sibling_or_a_reason() -> None:
    assert {"Client", "Producer", "Consumer", "Own", "SharedMap", "Candidacy"} <= set(CLASSES)
    assert set(CLASSES) - set(FACADES) == set(WITHOUT_SIBLING)


@pytest.mark.parametrize("name", FACADES)
def test_a_facade_wraps_the_class_of_its_name(name: str) -> None:
    assert async_class_of(FACADES[name]) is CLASSES[name]


def spared(name: str) -> set[str]:
    return {each for names in SPARED.get(name, {}).values() for each in names}


@pytest.mark.parametrize("name", FACADES)
def test_the_facade_has_every_public_member(name: str) -> None:
    wanted = {BLOCKING.get(each, each) for each in public_names(CLASSES[name])}
    has = public_names(FACADES[name]) | {each for each in dir(FACADES[name]) if each in wanted}
    assert wanted - has == spared(name)


@pytest.mark.parametrize("name", FACADES)
def test_its_methods_take_the_same(name: str) -> None:
    for method in public_names(CLASSES[name]) - spared(name) - set(BLOCKING):
        other = inspect.getattr_static(CLASSES[name], method, None)
        if not inspect.isfunction(other) or f"{name}.{method}" in OF_OTHER_PARAMETERS:
            continue
        ours = inspect.getattr_static(FACADES[name], method)
        assert inspect.isfunction(ours), f"{method} of {name} can be called"
        assert parameters(ours) == parameters(other), f"{name}.{method}"
        assert not inspect.iscoroutinefunction(ours)


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    """Of a method; positions are those of the asynchronous sibling."""
    taken = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in taken]


@pytest.mark.parametrize("name", FACADES)
def test_every_member_of_the_facade_has_a_docstring(name: str) -> None:
    undescribed = [
        each
        for each, value in vars(FACADES[name]).items()
        if not each.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
        and not value.__doc__
        and is_described(CLASSES[name], each)
    ]
    assert undescribed == []


def is_described(kind: type, name: str) -> bool:
    """Attributes that are set by __init__ have no docstring of their own; some releases of Python invent one."""
    found = inspect.getattr_static(kind, name, None)
    return (inspect.isfunction(found) or isinstance(found, property)) and bool(found.__doc__)


def test_properties_cannot_be_set() -> None:
    producer = onewriter.sync.Producer.__new__(onewriter.sync.Producer)
    with pytest.raises(AttributeError):
        producer.queue_priority = 3  # type: ignore[assignment]


def test_every_asynchronous_context_is_a_context_manager() -> None:
    for name, kind in FACADES.items():
        assert issubclass(kind, AbstractContextManager) == hasattr(CLASSES[name], "__aenter__"), (
            name
        )


def test_the_lists_of_reasons_name_what_is_there() -> None:
    for name, reasons in SPARED.items():
        for each in [each for names in reasons.values() for each in names]:
            assert each in public_names(CLASSES[name]), f"{name}.{each}"
    for each in OF_OTHER_PARAMETERS:
        name, _, method = each.partition(".")
        assert method in public_names(CLASSES[name])
