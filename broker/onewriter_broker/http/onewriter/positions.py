"""Positions in paths, queries and bodies of onewriter's own API: ``ledger:entry``."""

from __future__ import annotations

import re
from typing import Final

from aiohttp import web

from onewriter_broker.http.site import Refusal
from onewriter_core.ids import NUMBER_MAX, Position

_POSITION: Final = re.compile(r"([0-9]{1,16}):([0-9]{1,16})", re.ASCII)


def shown(position: Position) -> str:
    """A position in the format of this API."""
    return f"{position.ledger}:{position.entry}"


def read(text: object, name: str) -> Position:
    """Parse a position; raises Refusal that names the parameter."""
    match = _POSITION.fullmatch(text) if isinstance(text, str) else None
    if match is not None:
        position = Position(int(match[1]), int(match[2]))
        if max(position) <= NUMBER_MAX:
            return position
    raise Refusal(400, f'{name} is a position, "<ledger>:<entry>"')


def requested(request: web.Request, name: str) -> Position | None:
    """A position of the query; None if it is not given. Raises Refusal."""
    text = request.query.get(name)
    return None if text is None else read(text, name)
