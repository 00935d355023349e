"""``onewriter map``: read, change and follow a shared map."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import click

from onewriter.state import COMPACT, SAMPLE, Checkpoints, SharedMap, StateLimits
from onewriter.verbs.options import Connect, connecting, line, output

_TYPES: dict[str, type[Any]] = {"text": str, "int": int, "json": object}
_READ: dict[str, Callable[[str], Any]] = {"text": str, "int": int, "json": json.loads}
_FORMATS = {"compact": COMPACT, "sample": SAMPLE}

MISSING_EXIT_CODE = 4
"""The key does not exist, or has another value than expected."""

Verb = Callable[..., None]
Work = Callable[[SharedMap[Any, Any]], Awaitable[bool]]


@click.group(name="map")
def map_verb() -> None:
    """Read, change and follow a shared map.

    Exit codes: 1 definitely not done; 3 unknown whether it was done; 4 there is no such key, or
    it has another value than expected.
    """


_latest = click.option(
    "--latest/--local",
    default=True,
    show_default=True,
    help="Include every write that was acknowledged before; or read the local state, which is "
    "faster.",
)


def _on_a_map(verb: Verb) -> Verb:
    """Add the options that all verbs need to open the map."""
    for option in (
        click.option(
            "--keys",
            type=click.Choice(["text", "int"]),
            default="text",
            show_default=True,
            help="Type of the keys: text, or an integer.",
        ),
        click.option(
            "--values",
            type=click.Choice(list(_TYPES)),
            default="text",
            show_default=True,
            help="Type of the values: text, an integer, or any JSON.",
        ),
        click.option(
            "--format",
            "format_",
            type=click.Choice(list(_FORMATS)),
            default="compact",
            show_default=True,
            help="Format of the operations in the log; sample: the format of PIP-137's sample.",
        ),
        click.option(
            "--timeout-seconds",
            type=float,
            default=30.0,
            show_default=True,
            help="Timeout for reading the map, and for the result of a change.",
        ),
        output,
    ):
        verb = option(verb)
    return connecting(verb)


def _run(
    work: Work,
    *,
    connect: Connect,
    topic: str,
    keys: str,
    values: str,
    format_: str,
    timeout_seconds: float,
) -> None:
    """Open the map and run ``work``; the exit code reports whether the key existed."""

    async def whole() -> bool:
        limits = StateLimits(timeout_seconds=timeout_seconds)
        async with (
            connect.client() as client,
            SharedMap(
                client,
                topic,
                _TYPES[keys],
                _TYPES[values],
                format=_FORMATS[format_],
                limits=limits,
                checkpoints=Checkpoints(is_written=False),
            ) as shared,
        ):
            return await work(shared)

    if not asyncio.run(whole()):
        raise SystemExit(MISSING_EXIT_CODE)


def _of(kind: str, text: str) -> Any:
    """Convert an argument to a key or value."""
    try:
        return _READ[kind](text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a valid {kind}: {error}") from error


@map_verb.command()
@click.argument("topic")
@click.argument("key")
@_latest
@_on_a_map
def get(topic: str, key: str, *, latest: bool, output: str, **options: Any) -> None:
    """Print a key's value."""
    wanted = _of(options["keys"], key)

    async def work(shared: SharedMap[Any, Any]) -> bool:
        missing = object()
        value = await shared.get_or_default(wanted, missing, latest=latest)
        is_there = value is not missing
        if output == "json":
            line({"key": wanted, "value": value if is_there else None, "found": is_there})
        elif is_there:
            click.echo(value)
        return is_there

    _run(work, topic=topic, **options)


@map_verb.command()
@click.argument("topic")
@click.argument("key")
@click.argument("value")
@click.option("--if-absent", is_flag=True, help="Only if the key has no value.")
@click.option("--expect", help="Only if the key has this value.")
@_on_a_map
def put(
    topic: str,
    key: str,
    value: str,
    *,
    if_absent: bool,
    expect: str | None,
    output: str,
    **options: Any,
) -> None:
    """Set a key and print its former value."""
    if if_absent and expect is not None:
        raise click.UsageError("--if-absent and --expect exclude each other")
    wanted, new = _of(options["keys"], key), _of(options["values"], value)
    expected = None if expect is None else _of(options["values"], expect)

    async def work(shared: SharedMap[Any, Any]) -> bool:
        previous: Any = expected
        if expect is not None:
            is_set = await shared.replace(wanted, expected, new)
        elif if_absent:
            previous = await shared.put_if_absent(wanted, new)
            is_set = previous is None
        else:
            previous = await shared.put(wanted, new)
            is_set = True
        if output == "json":
            version = shared.state.version
            line({"key": wanted, "set": is_set, "previous": previous, "version": version})
        elif previous is not None:
            click.echo(previous)
        return is_set

    _run(work, topic=topic, **options)


@map_verb.command()
@click.argument("topic")
@click.argument("key")
@_on_a_map
def delete(topic: str, key: str, *, output: str, **options: Any) -> None:
    """Remove a key and print its former value."""
    wanted = _of(options["keys"], key)

    async def work(shared: SharedMap[Any, Any]) -> bool:
        previous = await shared.delete(wanted)
        if output == "json":
            line({"key": wanted, "previous": previous, "found": previous is not None})
        elif previous is not None:
            click.echo(previous)
        return previous is not None

    _run(work, topic=topic, **options)


@map_verb.command(name="list")
@click.argument("topic")
@_latest
@_on_a_map
def list_(topic: str, *, latest: bool, output: str, **options: Any) -> None:
    """Print all keys and their values, ordered by key."""

    async def work(shared: SharedMap[Any, Any]) -> bool:
        content = await shared.scan(dict, latest=latest)
        for key in sorted(content):
            if output == "json":
                line({"key": key, "value": content[key]})
            else:
                click.echo(f"{key}\t{content[key]}")
        return True

    _run(work, topic=topic, **options)


@map_verb.command()
@click.argument("topic")
@click.option("--initial", is_flag=True, help="First print the present entries.")
@click.option("--count", type=click.IntRange(min=1), help="End after this number of changes.")
@_on_a_map
def watch(topic: str, *, initial: bool, count: int | None, output: str, **options: Any) -> None:
    """Print each change as it happens."""

    async def work(shared: SharedMap[Any, Any]) -> bool:
        seen = 0
        async with shared.watch(initial=initial) as changes:
            async for change in changes:
                if output == "json":
                    line(change._asdict())
                elif change.value is None:
                    click.echo(f"- {change.key}")
                else:
                    click.echo(f"+ {change.key}\t{change.value}")
                seen += 1
                if seen == count:
                    break
        return True

    _run(work, topic=topic, **options)
