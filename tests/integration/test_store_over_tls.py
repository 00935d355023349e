"""A broker whose store serves TLS and requires a client certificate."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cluster.pki import Authority
from tests.integration.bare_brokers import bare_broker
from tests.integration.continuous_writer import ContinuousWriter
from tests.integration.raw import contents_of
from tests.tls_store import KINDS, running_tls_store, serve_with

from onewriter_broker.verbs.adopt import adopt as adopt_command
from onewriter_broker.verify.cli import verify_command

BUCKETS = 64
"""The number of buckets that ``onewriter adopt`` assumes."""


@pytest.mark.parametrize("kind", KINDS)
def test_topics_and_commands_use_a_store_with_tls(kind: str, tmp_path: Path, topic: str) -> None:
    """Writing, reading, `verify` and `adopt` connect with the configured certificate."""
    site = tmp_path / "site"
    with running_tls_store(kind, site, asks_for_client=True) as store:
        mine = tmp_path / "mine"
        shutil.copytree(site, mine)
        settings: dict[str, object] = {
            "buckets": BUCKETS,
            "redis_ca_file": str(mine / "ca.crt"),
            "redis_cert_file": str(mine / "broker.crt"),
            "redis_key_file": str(mine / "broker.key"),
        }
        variables = {
            f"ONEWRITER_{name.upper()}": str(value)
            for name, value in settings.items()
            if name.startswith("redis_")
        }
        with (
            bare_broker(store.url, settings=settings) as brokers,
            ContinuousWriter(topic, brokers) as writer,
        ):
            writer.has_acked(50)
            if store.proxy is not None:
                renewed = Authority(site)
                renewed.server("store", ["127.0.0.1"])
                renewed.client("broker", "broker")
                shutil.copytree(site, mine, dirs_exist_ok=True)
                store.proxy.use(serve_with(site, "store", asks_for=renewed.certificate))
                writer.has_acked(50)
                assert len(writer.epochs) == 1
            writer.stop()
            assert set(writer.acked) <= set(contents_of(brokers.address(), topic))
            run = CliRunner().invoke(
                verify_command, [topic, "--redis-url", store.url], env=variables
            )
            assert run.exit_code == 0, run.output
            refused = CliRunner().invoke(
                adopt_command,
                [
                    *("--force", "--all", "--reason", "nothing to do"),
                    *("--redis-url", store.url, "--data-dir", str(brokers.data_directory)),
                ],
                env=variables,
            )
            assert "nothing to force" in refused.output or "0 of" in refused.output
