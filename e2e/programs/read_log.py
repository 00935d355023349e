"""Verify topics' logs and print their entries, as they are in the store; runs in a broker's pod.

The program reads the store without any broker or client. It prints one JSON document per topic.
"""

import asyncio
import json
import sys
from typing import Any

from click.testing import CliRunner

from onewriter_broker.log.store.api import Marker
from onewriter_broker.log.store.redis.store import RedisLogStore
from onewriter_broker.log.topic_log.log import last_position, payloads
from onewriter_broker.process import redis_settings
from onewriter_broker.settings import Settings
from onewriter_broker.verify.cli import verify_command
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.wire.messages import entry_payload

BLOCKS_AT_ONCE = 500


def verdict(topic: str) -> Any:
    """Return the result of ``onewriter verify``."""
    return json.loads(CliRunner().invoke(verify_command, [topic, "--output=json"]).stdout)


async def entries(topic: str) -> list[dict[str, Any]]:
    """Return position, epoch and text of every entry."""
    store = RedisLogStore(redis_settings(Settings()))
    found: list[dict[str, Any]] = []
    epochs: dict[int, int] = {}
    after = EARLIEST
    try:
        while blocks := await store.read_blocks(
            TopicName.parse(topic), after, count=BLOCKS_AT_ONCE
        ):
            for block in blocks:
                if isinstance(block, Marker):
                    epochs[block.position.ledger] = int(block.fields.get("epoch", -1))
                    continue
                ledger, first = block.position
                for index, payload in enumerate(payloads(block)):
                    text = bytes(entry_payload(payload)).decode()
                    where = {"position": f"{ledger}-{first + index}", "epoch": epochs[ledger]}
                    found.append({**where, "text": text})
            last = last_position(blocks[-1])
            after = Position(last.ledger, last.entry + 1)
    finally:
        await store.close()
    return found


if __name__ == "__main__":
    for name in sys.argv[1:]:
        read = asyncio.run(entries(name))
        print(json.dumps({"topic": name, "verdict": verdict(name), "entries": read}))
