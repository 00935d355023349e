"""The option --redis-url of the commands that connect to a store themselves."""

from __future__ import annotations

from urllib.parse import urlsplit

import click


def without_password(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse a store's URL with a password, which other users would see in the list of processes."""
    try:
        has_password = value is not None and urlsplit(value).password is not None
    except ValueError:
        raise click.BadParameter("not a URL") from None
    if has_password:
        raise click.BadParameter(
            "other users would see the password in the list of processes; use"
            " ONEWRITER_REDIS_PASSWORD_FILE, or ONEWRITER_REDIS_URL for the whole URL"
        )
    return value
