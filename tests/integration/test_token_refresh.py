"""A token that expires is asked for again; the connection and its producers live on."""

from __future__ import annotations

import time
from pathlib import Path

import jwt
import pulsar

from onewriter_broker.testing import running_brokers

SECRET = b"a secret of at least thirty-two bytes"


def token(seconds: float) -> str:
    now = time.time_ns() / 1e9
    return jwt.encode({"sub": "writer", "exp": now + seconds}, SECRET, algorithm="HS256")


def test_a_fresh_token_keeps_the_writer(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    handed_out: list[str] = []

    def supply() -> str:
        handed_out.append(token(2))
        return handed_out[-1]

    with running_brokers(
        settings={"token_secret_file": str(secret), "authentication_required": True},
    ) as broker:
        client = pulsar.Client(
            broker.service_url, authentication=pulsar.AuthenticationToken(supply)
        )
        try:
            producer = client.create_producer(
                "refreshed", access_mode=pulsar.ProducerAccessMode.Exclusive
            )
            positions = []
            for _ in range(10):  # five seconds: two tokens expire meanwhile
                positions.append(producer.send(b"still me"))
                time.sleep(0.5)
        finally:
            client.close()
    assert len(handed_out) >= 3
    assert len({position.ledger_id() for position in positions}) == 1, "it was fenced in between"
