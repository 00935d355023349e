"""Failures of an offload: a short sentence, no partial result, and the next run continues."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.integration.conftest import RawClients
from tests.integration.forked_brokers import BUCKETS, forked_brokers
from tests.integration.offloading import Fill, numbered, offload, rows, stored, trim, values
from tests.integration.raw import EXCLUSIVE, FENCING, RawProducer
from tests.servers import running_server

from onewriter_broker.log.store.keys import Keys
from onewriter_core.ids import TopicName
from onewriter_core.wire.encoding import encode_send_header
from onewriter_core.wire.messages import build_entry
from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_pipeline import cli
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.engine import in_process
from onewriter_pipeline.errors import Damaged, EngineFailed, TableError
from onewriter_pipeline.jobs.offload import Offload
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.schema import FORMATS
from onewriter_pipeline.tables.layout import MESSAGES
from onewriter_pipeline.tables.tables import Tables
from onewriter_testing.processes import LocalBrokers

LZ4 = 1


def files(tables: Tables) -> list[str]:
    """Return all Parquet files in the folder, committed or not."""
    return [str(path) for path in Path(tables.place.location).glob("messages/**/*onewriter-*")]


def sent_as(producer: RawProducer, number: int, content: bytes, **fields: Any) -> None:
    """Publish an entry with additional fields in its metadata."""
    metadata = pb.MessageMetadata(
        producer_name=producer.name or "w", sequence_id=number, publish_time=1, **fields
    )
    entry = build_entry(metadata, content)
    producer.client.write(encode_send_header(producer.producer_id, number, len(entry)) + entry)
    producer.receipt(number)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_disk(access: Access, topic: str, fill: Fill, tmp_path: Path, kind: str) -> None:
    fill(topic, [b"%d" % number * 40 for number in range(3_000)])
    tables = Tables(str(tmp_path), kind=kind)
    program = (
        "import sys\n"
        "from onewriter_pipeline.brokers.connection import Access\n"
        "from onewriter_pipeline.engine import in_process\n"
        "from onewriter_pipeline.errors import TableError\n"
        "from onewriter_pipeline.jobs.offload import Offload\n"
        "from onewriter_pipeline.read.selection import Selection\n"
        "from onewriter_pipeline.tables.tables import Tables\n"
        "url, place, kind, topic = sys.argv[1:]\n"
        "job = Offload(Access(url), Tables(place, kind=kind), Selection(topics=(topic,)))\n"
        "try:\n"
        "    job.run(in_process, 2)\n"
        "except TableError as error:\n"
        "    sys.exit(str(error))\n"
    )

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    arguments = [sys.executable, "-c", program, access.url, str(tmp_path), kind, topic]
    full = subprocess.run(
        arguments, preexec_fn=small, check=False, timeout=240, capture_output=True, text=True
    )
    assert full.returncode == 1
    (line,) = full.stderr.splitlines()
    assert line.startswith(f"{tmp_path}/messages: ")
    assert "File too large" in line
    assert (tables.existing(MESSAGES).state().batch, files(tables)) == (None, [])
    assert offload(access, tables, topic).rows == 3_000


def test_where_spark_gives_up_no_files_are_left(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, numbered(0, 300))
    tables = Tables(str(tmp_path))
    seen: list[str] = []

    def gives_up(what: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterable[Any]:
        in_process(what, tasks)
        seen.extend(files(tables))
        raise EngineFailed("Spark failed: its Java is gone")

    job = Offload(access, tables, Selection(topics=(topic,)), with_audit=False)
    with pytest.raises(EngineFailed, match="its Java is gone"):
        job.run(gives_up, 2)
    assert seen
    assert files(tables) == []
    assert offload(access, tables, topic).rows == 300
    fill(topic, [b"more"])
    with pytest.raises(EngineFailed):
        job.run(gives_up, 2)
    assert len(files(tables)) == len(tables.existing(MESSAGES).files())


def test_an_entry_that_cannot_be_read(
    broker: LocalBrokers, access: Access, topic: str, raw: RawClients, fill: Fill, tmp_path: Path
) -> None:
    fill(topic, [b"before"])
    producer = raw(broker.address()).producer(topic, EXCLUSIVE)
    sent_as(producer, 0, b"no LZ4", compression=LZ4, uncompressed_size=100)
    producer.close()
    fill(topic, [b"behind"])
    tables = Tables(str(tmp_path))
    text = r"the entry \d+:1 cannot be read: its content cannot be uncompressed$"
    with pytest.raises(TableError, match=text):
        offload(access, tables, topic)
    assert (tables.existing(MESSAGES).state().batch, files(tables)) == (None, [])
    assert offload(access, tables, topic, skip_corrupt=True).rows == 2
    assert stored(tables) == [b"before", b"behind"]
    assert sum(row.messages - row.rows for row in tables.segments()) == 1
    report = trim(access, tables, topic)
    assert (report.differences, report.messages) == ([], 2)


def test_a_block_that_no_broker_wrote(raw: RawClients, tmp_path: Path) -> None:
    with (
        running_server() as store,
        forked_brokers(redis_url=store.url, settings={"tail_bytes_per_log": 1}) as brokers,
    ):
        access, tables = Access(brokers.http_url), Tables(str(tmp_path))
        producer = raw(brokers.address()).producer("damaged", EXCLUSIVE)
        ledger = producer.publish(b"first").ledger
        key = Keys(BUCKETS).of(TopicName.parse("damaged"))[0]
        with redis.Redis.from_url(store.url, protocol=2) as direct:
            direct.xadd(key, {"who": "somebody"}, id=f"{ledger}-6")
            raw(brokers.address()).producer("damaged", FENCING).publish(b"later")
            with pytest.raises(Damaged, match=f"{ledger}-6"):
                offload(access, tables, "damaged")
            assert (tables.existing(MESSAGES).state().batch, files(tables)) == (None, [])
            direct.xdel(key, f"{ledger}-6")
        assert offload(access, tables, "damaged").rows == 2


def test_a_message_that_was_given_up_with_its_epoch_holds_no_trim_back(
    broker: LocalBrokers, access: Access, topic: str, raw: RawClients, fill: Fill, tmp_path: Path
) -> None:
    producer = raw(broker.address()).producer(topic, EXCLUSIVE)
    chunk = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 20}
    sent_as(producer, 0, bytes(10), chunk_id=0, **chunk)
    tables = Tables(str(tmp_path))
    offload(access, tables, topic)
    assert stored(tables) == []
    fill(f"{topic}-other", [b"x"])
    producer.close()  # the message is incomplete, and its epoch may continue
    assert trim(access, tables, topic).limited_by == "ledger"
    fill(topic, numbered(0, 300))
    fill(topic, [b"last"])
    offload(access, tables, topic)
    report = trim(access, tables, topic)
    assert (report.differences, report.limited_by) == ([], "ledger")
    assert report.before > report.first
    assert report.messages == 301
    assert values(access, topic, tables) == [*numbered(0, 300), b"last"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_topic_without_messages_is_no_mistake(
    access: Access,
    topic: str,
    fill: Fill,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    fill(topic, [])
    words = ["--admin-url", access.url, "--topic", topic, "--table-format", kind]
    words += ["--table", str(tmp_path)]
    for _ in range(2):
        assert cli.run(["offload", *words]) == 0
        assert "nothing to offload" in capsys.readouterr().out
    (tmp_path / "messages" / "notes.txt").write_text("mine")
    for verb in ("trim", "offload"):
        assert cli.run([verb, *words]) == 0
    assert (
        "messages/notes.txt does not belong to the tables; it was not touched"
        in capsys.readouterr().err
    )
    assert cli.run(["table", "--table", str(tmp_path), "--table-format", kind, "-o", "json"]) == 0
    assert '"offsets"' in capsys.readouterr().out
    tables = Tables(str(tmp_path), kind=kind)
    assert rows(access, topic, tables, **{"table.format": kind}) == []
    fill(topic, [b"first"])
    assert offload(access, tables, topic).rows == 1
    assert stored(tables) == [b"first"]


def test_a_topic_that_was_never_offloaded_is_reported(
    access: Access, topic: str, fill: Fill, tmp_path: Path
) -> None:
    tables = Tables(str(tmp_path))
    fill(topic, numbered(0, 100))
    offload(access, tables, topic)
    fill(f"{topic}-other", numbered(0, 100))
    report = trim(access, tables, f"{topic}-other")
    assert (report.limited_by, report.before) == ("offload", report.first)
    assert "is not in the table yet" in report.line()
