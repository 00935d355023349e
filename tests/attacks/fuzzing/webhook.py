"""The admission webhook as a process of its own, for attacks: ``python -m tests.attacks.fuzzing.webhook FOLDER PORT``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.cluster.pki import Authority

from onewriter_operator.admission import Injection
from onewriter_operator.webhook import Webhook


async def serve(folder: Path, port: int) -> None:
    authority = Authority(folder / "pki")
    authority.server("webhook", ["localhost", "127.0.0.1"])

    async def injection() -> Injection:
        return Injection("image", "Never", "pulsar://broker:6650")

    folder = authority.directory
    webhook = Webhook(folder / "webhook.crt", folder / "webhook.key", injection)
    await webhook.start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
