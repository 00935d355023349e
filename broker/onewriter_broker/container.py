"""``onewriter broker``: one broker under its supervisor, for containers.

The supervisor is the container's first process. It kills a broker that hangs, so that its clients connect to
other brokers at once, and it forwards signals. The store is external. All settings come from the environment.
This module imports little, because the process only waits.
"""

from __future__ import annotations

import asyncio
import sys

import click

from onewriter_broker.local.supervisor import ChildFailed, Supervisor, broker_child
from onewriter_broker.logs import configure_logging
from onewriter_broker.settings import Settings
from onewriter_broker.termination_message import termination_file, write_termination_message
from onewriter_core.errors import ConfigurationError


@click.command()
def broker() -> None:
    """Run one broker, in a container: settings come from ONEWRITER_* variables.

    ONEWRITER_REDIS_URL or ONEWRITER_REDIS_SENTINELS names the store; there is no embedded one.
    On SIGTERM the broker gives its buckets to other brokers and stops. charts/onewriter/README.md lists the settings
    (rollBytes there is ONEWRITER_ROLL_BYTES here).
    """
    configure_logging()
    try:
        settings = settings_from_environment()
        supervisor = Supervisor(
            settings.data_dir,
            lambda: [broker_child(settings)],
            frozen_seconds=settings.frozen_after_seconds,
            stuck_seconds=settings.stuck_after_seconds,
        )
        code = asyncio.run(supervisor.run())
    except ConfigurationError as error:
        # A broker that ended with a reason has written it.
        is_own = not isinstance(error, ChildFailed)
        write_termination_message(termination_file(), str(error), replaces=is_own)
        raise
    sys.exit(code)


def settings_from_environment() -> Settings:
    """The settings of one broker. Raises ConfigurationError that names the variables."""
    settings = Settings.read()
    if not settings.redis_url and not settings.redis_sentinels:
        raise ConfigurationError(
            "name the store: ONEWRITER_REDIS_URL, or ONEWRITER_REDIS_SENTINELS (`onewriter up`"
            " brings one of its own)"
        )
    return settings
