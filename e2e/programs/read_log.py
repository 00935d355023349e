"""Print a topic's entries as the store has them, one JSON line each; runs in a broker's pod.

No broker and no client is asked: what stands here was appended.
"""

import asyncio
import json
import sys

from onewriter_broker.log.api import Marker
from onewriter_broker.log.redis_store import RedisLogStore
from onewriter_broker.log.topic_log import last_position, payloads
from onewriter_broker.process import redis_settings
from onewriter_broker.settings import Settings
from onewriter_core.ids import EARLIEST, Position, TopicName
from onewriter_core.wire.messages import entry_payload

BLOCKS_AT_ONCE = 500


async def main(topic: str) -> None:
    store = RedisLogStore(redis_settings(Settings()))
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
                    print(json.dumps({**where, "text": text}))
            last = last_position(blocks[-1])
            after = Position(last.ledger, last.entry + 1)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
