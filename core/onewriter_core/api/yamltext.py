"""Reads untrusted YAML and JSON text as plain values.

Depth and size are limited *after* the expansion of aliases. So a few lines that expand to billions of values are
rejected before any value is built. A duplicate key is an error, as in Kubernetes. Dates stay strings, as in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

DEPTH_MAX = 50
"""The maximum depth of nested mappings and lists."""

VALUES_MAX = 50_000
"""The maximum number of scalars, lists and mappings in a document, with aliases expanded."""

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(
    _TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge", "value")
)


class UnreadableText(ValueError):
    """The text is malformed or exceeds a limit. The message names the place."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with a depth limit, without the type for dates."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML reads this very class attribute
        first: [pair for pair in pairs if pair[0] != f"{_TAG}timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str, values_max: int) -> None:
        super().__init__(text)
        self.values_max = values_max
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth >= DEPTH_MAX:
            event = self.peek_event()  # type: ignore[no-untyped-call]  # its stub is incomplete
            raise UnreadableText(f"{_line(event)}: nested deeper than {DEPTH_MAX}")
        # Counted here as well, so that a huge document is rejected before it is parsed completely.
        self._nodes = self._nodes + 1 if self._depth else 1
        if self._nodes > self.values_max:
            raise UnreadableText(f"more than {self.values_max} values")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


@dataclass(frozen=True, slots=True)
class _Size:
    """The expanded size of a node. ``is_open``: its children are still being counted."""

    values: int
    is_open: bool = False


def read_yaml(text: str, *, values_max: int = VALUES_MAX) -> Iterator[object]:
    """The documents of a YAML stream, one by one. An empty document is None.

    Raises UnreadableText, after the documents before the malformed one were yielded.
    """
    try:
        loader = _Loader(text, values_max)
        while loader.check_node() and (node := loader.get_node()) is not None:
            _check(node, loader, {})
            yield loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise UnreadableText(f"{where}{error.problem or error.context or 'not YAML'}") from error
    except UnreadableText:
        raise
    except yaml.reader.ReaderError as error:
        raise UnreadableText(
            f"character {error.position + 1}: not allowed in YAML ({error.reason})"
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise UnreadableText(f"not YAML: {str(error)[:200]}") from error


def read_json(text: str) -> object:
    """The value of a JSON text. Raises UnreadableText."""
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice)
    except json.JSONDecodeError as error:
        raise UnreadableText(f"line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise UnreadableText(f"nested deeper than {DEPTH_MAX}") from error
    except ValueError as error:
        raise UnreadableText(str(error)[:200]) from error


def _no_key_twice(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnreadableText(f"the key {twice[:100]!r} stands twice")
    return mapping


def _check(node: yaml.Node, loader: _Loader, sizes: dict[int, _Size]) -> int:
    """Count the expanded size of a node. Reject features that plain documents do not use."""
    known = sizes.get(id(node))
    if known is not None:
        if known.is_open:
            raise UnreadableText(f"{_line(node)}: an alias inside what it stands for")
        return known.values
    sizes[id(node)] = _Size(0, is_open=True)
    values = 1
    if isinstance(node, yaml.ScalarNode):
        _check_scalar(node, loader)
    elif isinstance(node, yaml.MappingNode):
        _check_keys(node)
        for key, value in node.value:
            values = _add(values, _check(key, loader, sizes), node, loader.values_max)
            values = _add(values, _check(value, loader, sizes), node, loader.values_max)
    else:
        for item in node.value:
            values = _add(values, _check(item, loader, sizes), node, loader.values_max)
    if node.tag not in _PLAIN_TAGS:
        raise UnreadableText(f"{_line(node)}: the tag {node.tag[:100]!r} is not allowed")
    sizes[id(node)] = _Size(values)
    return values


def _add(values: int, more: int, node: yaml.Node, most: int) -> int:
    if values + more > most:
        raise UnreadableText(f"{_line(node)}: more than {most} values, aliases counted in")
    return values + more


def _check_scalar(node: yaml.ScalarNode, loader: _Loader) -> None:
    """An explicit tag must be the implicit tag of the text (as in ``!!int 1``)."""
    if node.tag == f"{_TAG}str":
        return
    fitting = loader.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]  # its stub is incomplete
    if node.tag != fitting:
        raise UnreadableText(f"{_line(node)}: {node.value[:100]!r} does not fit {node.tag[:100]!r}")


def _check_keys(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UnreadableText(f"{_line(key)}: a key must be a string")
        if key.value in seen and key.tag != f"{_TAG}merge":
            raise UnreadableText(f"{_line(key)}: the key {key.value[:100]!r} stands twice")
        seen.add(key.value)


def _line(item: yaml.Node | yaml.Event | None) -> str:
    mark = None if item is None else item.start_mark
    return "here" if mark is None else f"line {mark.line + 1}"
