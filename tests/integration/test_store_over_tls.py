"""A broker whose store serves TLS and requires a client certificate."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cluster.pki import Authority
from tests.integration.bare_brokers import bare_broker
from tests.integration.continuous_writer import ContinuousWriter
from tests.integration.raw import contents_of
from tests.tls_store import (
    CLUSTER_NAME,
    KINDS,
    running_tls_cluster,
    running_tls_store,
    serve_with,
)

from onewriter_broker.log.store.keys import Keys
from onewriter_broker.verbs.adopt import adopt as adopt_command
from onewriter_broker.verify.cli import verify_command
from onewriter_core.cluster_views import slot_of
from onewriter_core.ids import TopicName

BUCKETS = 64
"""The number of buckets that ``onewriter adopt`` assumes."""


@pytest.mark.parametrize("kind", KINDS)
def test_topics_and_commands_use_a_store_with_tls(kind: str, tmp_path: Path, topic: str) -> None:
    """Writing, reading, `verify` and `adopt` connect with the configured certificate."""
    site = tmp_path / "site"
    with running_tls_store(kind, site, asks_for_client=True) as store:
        own = tmp_path / "mine"
        shutil.copytree(site, own)
        settings: dict[str, object] = {
            "buckets": BUCKETS,
            "redis_ca_file": str(own / "ca.crt"),
            "redis_cert_file": str(own / "broker.crt"),
            "redis_key_file": str(own / "broker.key"),
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
                shutil.copytree(site, own, dirs_exist_ok=True)
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


def test_topics_and_commands_use_a_cluster_with_tls(tmp_path: Path) -> None:
    """The certificate of the nodes has another name than their addresses, so ``redis_server_name`` is necessary."""
    keys = Keys(BUCKETS)
    with running_tls_cluster(tmp_path) as (cluster, url):
        settings: dict[str, object] = {
            "buckets": BUCKETS,
            "redis_ca_file": str(tmp_path / "ca.crt"),
            "redis_cert_file": str(tmp_path / "broker.crt"),
            "redis_key_file": str(tmp_path / "broker.key"),
            "redis_server_name": CLUSTER_NAME,
        }
        variables = {
            f"ONEWRITER_{name.upper()}": str(value)
            for name, value in settings.items()
            if name.startswith("redis_")
        }
        found = cluster.map()
        topics: dict[str, str] = {}
        for number in range(100):
            slot = slot_of(keys.log(TopicName.parse(f"tls-{number}")))
            primary = found.primary_of(slot)
            assert primary is not None
            topics.setdefault(primary.node_id, f"tls-{number}")
        assert len(topics) == len(cluster.servers)
        with bare_broker(url, settings=settings) as brokers:
            for topic in topics.values():
                with ContinuousWriter(topic, brokers) as writer:
                    writer.has_acked(20)
                assert set(writer.acked) <= set(contents_of(brokers.address(), topic))

            def verified(**changed: str | None) -> Result:
                words = ["--all", "--redis-url", url]
                return CliRunner().invoke(verify_command, words, env={**variables, **changed})

            run = verified()
            assert run.exit_code == 0, run.output
            unnamed = verified(ONEWRITER_REDIS_SERVER_NAME=None)
            assert unnamed.exit_code != 0
            assert "certificate is not for" in str(unnamed.exception)
            strange = Authority(tmp_path / "strange")
            refused = verified(ONEWRITER_REDIS_CA_FILE=str(strange.certificate))
            assert refused.exit_code != 0
            assert "no authority" in str(refused.exception)
            anonymous = verified(ONEWRITER_REDIS_CERT_FILE=None, ONEWRITER_REDIS_KEY_FILE=None)
            assert anonymous.exit_code != 0
            assert "client certificate" in str(anonymous.exception)
