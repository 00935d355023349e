"""Brokers that log in to their store as different users, so that a test can tell their connections apart."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from tests.integration.forked_brokers import BUCKETS, ForkedBrokers
from tests.servers import BROKER_PASSWORD, BROKER_USER

from onewriter_testing.processes import LocalBrokers


class BrokersOfTwoUsers(ForkedBrokers):
    """Broker 1 logs in to the store as a user of its own, so that a test can lock it out of one shard."""

    def _bare_command(self, number: int) -> list[str]:
        command = super()._bare_command(number)
        if number == 1:
            path = Path(command[-1])
            user = f"{BROKER_USER}:{quote(BROKER_PASSWORD)}@"
            url = self._redis_url.replace("://", f"://{user}")
            path.write_text(json.dumps(json.loads(path.read_text()) | {"redis_url": url}))
        return command


@contextlib.contextmanager
def brokers_of_two_users(
    redis_url: str, manifests: str, settings: Mapping[str, object]
) -> Iterator[LocalBrokers]:
    with tempfile.TemporaryDirectory(prefix="onewriter-") as folder:
        brokers = BrokersOfTwoUsers(
            Path(folder),
            brokers=2,
            manifests=manifests,
            redis_url=redis_url,
            supervised=False,
            settings={"buckets": BUCKETS} | dict(settings),
        )
        try:
            brokers.start()
            yield brokers
        except BaseException as error:
            error.add_note(f"the brokers' log ends with:\n{brokers.log_end()}")
            raise
        finally:
            brokers.stop()
