"""Reading topics with Spark: end to end in ``local[2]``, from logs and from tables, beside a plain Pulsar reader and
``spark.read.parquet`` of the same rows.

By hand: ``python -m bench.pipeline_source [--messages 2000000] [--repetitions 5]``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pulsar
from bench.machine import OtherWork, describe_machine, process_usage
from bench.onewriter_lab import Onewriter
from bench.report import Goal, Ratio, Report, Value, number, table
from pyspark.sql import DataFrame, SparkSession

from onewriter_pipeline.brokers.broker import Broker
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.brokers.frames import Chunk
from onewriter_pipeline.decode import Decoder
from onewriter_pipeline.engine import LOCAL_SETTINGS, cores_of, on_spark
from onewriter_pipeline.jobs.offload import Offload
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.tables.layout import MESSAGES, TOPIC_PARTITION, folder_of
from onewriter_pipeline.tables.tables import Tables

MEGA = 1e6
BATCH_MESSAGES = 1_000
BATCH_BYTES = 128 * 1024
PENDING_MESSAGES = 5_000
CHUNKS_MAX = 8
"""Of a topic, that the decoder alone is measured on: some 64 MiB."""

PLAIN_MESSAGES = 500_000
"""That the plain Pulsar reader reads."""

PLAIN_QUEUES = (1_000, 10_000, 50_000)
"""The reader's queue, in messages: its default, and longer ones. The best one counts."""

COLUMNS = "value,__ledgerId,__entryId"


@dataclass(frozen=True, slots=True)
class Topic:
    """Messages of one kind, a share of those that a run takes."""

    label: str
    value_bytes: int
    batched: bool
    compression: pulsar.CompressionType
    share: float
    varies: bool = False
    """Whether the sizes vary, up to twice the average."""

    @property
    def name(self) -> str:
        """The topic's."""
        return "bench-" + self.label.replace(" ", "-").replace(",", "").lower()


TOPICS = (
    Topic("100 B, batched", 100, True, pulsar.CompressionType.NONE, 1.0),
    Topic("100 B, batched, LZ4", 100, True, pulsar.CompressionType.LZ4, 1.0),
    Topic("100 B, batched, ZSTD", 100, True, pulsar.CompressionType.ZSTD, 1.0),
    Topic("100 B on average, batched", 100, True, pulsar.CompressionType.NONE, 1.0, varies=True),
    Topic("100 B, unbatched", 100, False, pulsar.CompressionType.NONE, 0.5),
    Topic("1 KiB, batched", 1024, True, pulsar.CompressionType.NONE, 0.25),
)


@dataclass(slots=True)
class Samples:
    """Messages per second, by what was measured and topic; ``cpu``: microseconds per message."""

    rates: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def add(self, what: str, topic: Topic, messages: int, seconds: float) -> None:
        """One more repetition."""
        self.rates.setdefault((what, topic.label), []).append(messages / seconds)

    def median(self, what: str, topic: Topic) -> float | None:
        """None where it was not measured."""
        found = self.rates.get((what, topic.label))
        return statistics.median(found) if found else None

    def cpu_median(self, topic: Topic) -> float | None:
        """Of all processes together, in microseconds for each message."""
        found = self.cpu.get(topic.label)
        return statistics.median(found) if found else None


ALL_COLUMNS, THREE_COLUMNS = "all columns", "value and position"
DECODER, PLAIN = "decoder alone, one core", "plain Pulsar reader"
COLD, PARQUET = "tier=cold", "spark.read.parquet"


def fill(service_url: str, topic: Topic, messages: int) -> None:
    """Publish with the stock client; half of each value is random."""
    client = _client(service_url)
    producer = client.create_producer(
        topic.name,
        batching_enabled=topic.batched,
        batching_max_messages=BATCH_MESSAGES,
        batching_max_allowed_size_in_bytes=BATCH_BYTES,
        compression_type=topic.compression,
        block_if_queue_full=True,
        max_pending_messages=PENDING_MESSAGES,
    )
    drawn = random.Random(7)
    half = drawn.randbytes(topic.value_bytes // 2)
    for _ in range(messages):
        size = drawn.randrange(2 * topic.value_bytes) if topic.varies else topic.value_bytes
        producer.send_async(half[: size // 2] + bytes(size - min(len(half), size // 2)), None)
    producer.flush()
    client.close()


def _client(service_url: str) -> pulsar.Client:
    return pulsar.Client(
        service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    )


def plain(service_url: str, topic: Topic, messages: int, queue: int) -> float:
    """Create a plain reader and read this number of messages; the seconds that both take."""
    client = _client(service_url)
    began = time.perf_counter()
    reader = client.create_reader(topic.name, pulsar.MessageId.earliest, receiver_queue_size=queue)
    for _ in range(messages):
        reader.read_next().data()
    seconds = time.perf_counter() - began
    client.close()
    return seconds


def decoded(chunks: Sequence[Chunk], topic: Topic) -> tuple[int, float]:
    """Messages of chunks in memory, and the CPU seconds that it takes to decode them."""
    decoder = Decoder(topic.name)
    began = time.process_time()
    messages = sum(batch.num_rows for chunk in chunks for batch in decoder.decode(chunk))
    return messages, time.process_time() - began


def topic_frame(spark: SparkSession, url: str, topic: Topic, **options: str) -> DataFrame:
    """A topic as a DataFrame. Planning happens when it is read."""
    reader = spark.read.format("onewriter").option("admin.url", url).option("topic", topic.name)
    return reader.options(**options).load()


def read(spark: SparkSession, url: str, topic: Topic, **options: str) -> None:
    """Read a whole topic and throw it away."""
    thrown_away(topic_frame(spark, url, topic, **options))


def thrown_away(frame: DataFrame) -> None:
    """Read a DataFrame and throw it away."""
    frame.write.format("noop").mode("overwrite").save()


def session() -> SparkSession:
    """``local[2]``, as small as the tests'."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": LOCAL_SETTINGS["spark.sql.shuffle.partitions"],
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "OFF",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextlib.contextmanager
def running_session() -> Iterator[SparkSession]:
    """The same, ended at the end."""
    spark = session()
    try:
        yield spark
    finally:
        spark.stop()


def measure(lab: Onewriter, messages: int, repetitions: int) -> Samples:
    """Fill the topics, then everything in turn; the first reading of each topic does not count."""
    samples = Samples()
    counts = {topic: int(messages * topic.share) for topic in TOPICS}
    for topic in TOPICS:
        fill(lab.service_url, topic, counts[topic])
    with running_session() as spark, tempfile.TemporaryDirectory(prefix="onewriter-") as folder:
        tables = Tables(folder)
        names = tuple(topic.name for topic in TOPICS)
        job = Offload(Access(lab.admin_url), tables, Selection(topics=names), with_audit=False)
        job.run(on_spark(spark), cores_of(spark))
        for topic in TOPICS:
            found = topic_frame(spark, lab.admin_url, topic).count()
            if found != counts[topic]:
                raise RuntimeError(f"{topic.name} has {found} messages, not {counts[topic]}")
        for repetition in range(-1, repetitions):
            for topic in TOPICS:
                for what, messages_read, seconds, cpu in _readings(
                    spark, lab, tables, topic, counts[topic]
                ):
                    if repetition >= 0:
                        samples.add(what, topic, messages_read, seconds)
                        if what == ALL_COLUMNS:
                            spent = samples.cpu.setdefault(topic.label, [])
                            spent.append(cpu / messages_read * MEGA)
    for topic in TOPICS:
        with Broker(Access(lab.admin_url)) as broker:
            stream = broker.read(topic.name)
            chunks = [chunk for _, chunk in zip(range(CHUNKS_MAX), stream, strict=False)]
        for _ in range(repetitions):
            samples.add(DECODER, topic, *decoded(chunks, topic))
    return samples


def _readings(
    spark: SparkSession, lab: Onewriter, tables: Tables, topic: Topic, count: int
) -> Iterator[tuple[str, int, float, float]]:
    """What was read, the messages, the seconds it took, and the CPU seconds of everything that took part."""
    table = tables.existing(MESSAGES)
    files = [
        f"{table.place.location}/{each.path}"
        for each in table.files()
        if each.partition[TOPIC_PARTITION] == folder_of(f"persistent://public/default/{topic.name}")
    ]
    cold = {"tier": "cold", "table": tables.place.location}
    ways: dict[str, Callable[[], None]] = {
        ALL_COLUMNS: lambda: read(spark, lab.admin_url, topic),
        THREE_COLUMNS: lambda: read(spark, lab.admin_url, topic, columns=COLUMNS),
        COLD: lambda: read(spark, lab.admin_url, topic, **cold),
        PARQUET: lambda: thrown_away(spark.read.parquet(*files)),
    }
    for what, way in ways.items():
        used, began = process_usage([os.getpid()]), time.perf_counter()
        way()
        seconds = time.perf_counter() - began
        yield what, count, seconds, process_usage([os.getpid()]).since(used).cpu_seconds
    few = min(PLAIN_MESSAGES, count)
    best = min(plain(lab.service_url, topic, few, queue) for queue in PLAIN_QUEUES)
    yield PLAIN, few, best, 0.0


def report(samples: Samples, messages: int, repetitions: int) -> Report:
    """What was done, the goals, and the figures."""
    text = (
        f"Whole topics of up to {messages:,} messages into Spark's `noop` sink, `local[2]`, broker and"
        f" store on the same cores; medians of {repetitions} readings, planning included. The producers are"
        f" stock clients (batches of {BATCH_MESSAGES:,} or {BATCH_BYTES // 1024} KiB); half of each value is"
        " random. The plain reader is a stock Python reader that calls `read_next()`, with the best of"
        f" its queues of {', '.join(f'{queue:,}' for queue in PLAIN_QUEUES)} messages in each reading."
        " `spark.read.parquet` reads the files of the table that `tier=cold` reads."
    )
    small, large = TOPICS[0], TOPICS[-1]
    unbatched = next(topic for topic in TOPICS if not topic.batched)
    megabytes = (samples.median(ALL_COLUMNS, large) or 0) * large.value_bytes / MEGA or None
    goals: list[Goal] = [
        ("100 B, batched: at least 0.5 M messages/s", _million(samples, small)),
        ("100 B, unbatched: at least 0.5 M messages/s", _million(samples, unbatched)),
        ("1 KiB: at least 150 MB/s", Value(megabytes, "MB/s", at_least=150)),
        ("100 B, batched: at least 3 times a plain reader", _ratio(samples, small, PLAIN, 3)),
        ("1 KiB: at least a plain reader", _ratio(samples, large, PLAIN, 1)),
        ("1 KiB: at least 0.8 of spark.read.parquet", _ratio(samples, large, PARQUET, 0.8)),
        (
            "1 KiB, tier=cold: at least 0.9 of spark.read.parquet",
            _ratio(samples, large, PARQUET, 0.9, ours=COLD),
        ),
    ]
    kinds = (ALL_COLUMNS, THREE_COLUMNS, COLD, DECODER, PLAIN, PARQUET)
    rows = [
        [
            topic.label,
            *(number(_in_millions(samples.median(kind, topic)), "", 2) for kind in kinds),
            number(samples.cpu_median(topic), "", 2),
        ]
        for topic in TOPICS
    ]
    names = ["M messages/s", *kinds, "CPU of all, µs per message"]
    return text, goals, table(names, rows)


def _ratio(
    samples: Samples, topic: Topic, theirs: str, at_least: float, ours: str = ALL_COLUMNS
) -> Ratio:
    return Ratio(samples.median(ours, topic), samples.median(theirs, topic), at_least=at_least)


def _in_millions(rate: float | None) -> float | None:
    return None if rate is None else rate / MEGA


def _million(samples: Samples, topic: Topic) -> Value:
    rate = _in_millions(samples.median(ALL_COLUMNS, topic))
    return Value(rate, "M messages/s", at_least=0.5, digits=2)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline_source")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    print(describe_machine(), flush=True)
    others = OtherWork()
    with Onewriter() as lab:
        samples = measure(lab, given.messages, given.repetitions)
    text, goals, lines = report(samples, given.messages, given.repetitions)
    verdicts = [f"{name}: {value.verdict()}" for name, value in goals]
    print("\n".join([text, "", *verdicts, "", *lines]))
    print(f"Others used {others.share():.0%} of the processors.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
