"""The broker asks again for a token that expires; the connection and its producers continue."""

from __future__ import annotations

import time
from pathlib import Path

import jwt
import pulsar
from tests.integration.forked_brokers import forked_brokers

SECRET = b"a secret of at least thirty-two bytes"
LIFE_SECONDS = 4.0
"""Lifetime of a token, and a client's time to present its present one."""
TOKENS = 4


def token(seconds: float) -> str:
    now = time.time_ns() / 1e9
    return jwt.encode({"sub": "writer", "exp": now + seconds}, SECRET, algorithm="HS256")


def test_a_fresh_token_keeps_the_writer(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    handed_out: list[str] = []

    def supply() -> str:
        handed_out.append(token(LIFE_SECONDS))
        return handed_out[-1]

    with forked_brokers(
        settings={"token_secret_file": str(secret), "authentication_required": True},
    ) as broker:
        client = pulsar.Client(
            broker.service_url, authentication=pulsar.AuthenticationToken(supply)
        )
        try:
            producer = client.create_producer(
                "refreshed", access_mode=pulsar.ProducerAccessMode.Exclusive
            )
            positions = [producer.send(b"still me")]
            while len(handed_out) < TOKENS:  # all but the last one have expired
                positions.append(producer.send(b"still me"))
                time.sleep(0.1)
            positions.append(producer.send(b"still me"))
        finally:
            client.close()
    assert len({position.ledger_id() for position in positions}) == 1, "it was fenced in between"
