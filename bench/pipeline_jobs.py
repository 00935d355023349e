"""The pipeline's jobs on Spark: offload to a table, the audit of many positions, the sink, memory of executors.

Everything in ``local[2]``, with broker and store on the same cores. Part of ``python -m bench.pipeline_run``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bench.machine import resident_bytes_of
from bench.onewriter_lab import Onewriter
from bench.pipeline_source import TOPICS, Topic, fill, read
from bench.raw_client import publish
from bench.report import Goal, Ratio, Report, Value, number, table
from pyspark.sql import SparkSession

from onewriter_pipeline.audit.audit import Audit
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.engine import cores_of, on_spark
from onewriter_pipeline.jobs.offload import Offload
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.tables.tables import Tables

MEGA = 1e6
AUDITED_TOPICS = 10
AUDITED_BYTES = 20
IN_FLIGHT = 5_000
FRAMES_AT_ONCE = 100_000
"""Messages that the load generator keeps in memory."""

SINK_PARTITIONS = 4
SINK_SIZES = {"100 B": 100, "1 KiB": 1024}
SINK_BYTES_MAX = 100_000_000
"""Of the values of one batch: staged and published they are in the store's memory twice."""
SAMPLE_SECONDS = 0.05
PYTHON_WORKER = "pyspark.daemon pyspark.worker"

OFFLOADED = tuple(topic for topic in TOPICS if topic.label in {"100 B, batched", "1 KiB, batched"})


def offload(lab: Onewriter, spark: SparkSession, messages: int, repetitions: int) -> Report:
    """Topics into a table that is made anew each time; the first time does not count."""
    rates: dict[str, list[float]] = {topic.label: [] for topic in OFFLOADED}
    for topic in OFFLOADED:
        fill(lab.service_url, topic, int(messages * topic.share))
    for repetition in range(-1, repetitions):
        for topic in OFFLOADED:
            with tempfile.TemporaryDirectory(prefix="onewriter-") as folder:
                job = Offload(
                    Access(lab.admin_url), Tables(folder), Selection(topics=(topic.name,))
                )
                began = time.perf_counter()
                rows = job.run(on_spark(spark), cores_of(spark)).rows
                if repetition >= 0:
                    rates[topic.label].append(rows / (time.perf_counter() - began))
    medians = {label: statistics.median(found) for label, found in rates.items()}
    text = (
        f"Up to {messages:,} messages into a new Delta table on a local disk, synced, `local[2]`;"
        f" medians of {repetitions}."
    )
    small = Value(medians[OFFLOADED[0].label] / MEGA, "M messages/s", at_least=0.3, digits=2)
    lines = [[label, number(rate / MEGA, "", 2)] for label, rate in medians.items()]
    return text, [("100 B: at least 0.3 M messages/s", small)], table(["", "M messages/s"], lines)


def audit(lab: Onewriter, spark: SparkSession, positions: int, repetitions: int) -> Report:
    """The audit of live logs: the time to read them, and the time to judge what was read."""
    names = [f"audited-{each}" for each in range(AUDITED_TOPICS)]
    for name in names:
        left = positions // AUDITED_TOPICS
        while left > 0:
            count = min(left, FRAMES_AT_ONCE)
            publish(
                lab.service_url,
                name,
                messages=count,
                in_flight=IN_FLIGHT,
                message_bytes=AUDITED_BYTES,
            )
            left -= count
    job = Audit(Access(lab.admin_url), Selection(topics=tuple(names)))
    read_seconds, judge_seconds, entries, findings = [], [], 0, 0
    for repetition in range(-1, repetitions):
        report = job.live(spark)
        entries = sum(each["entries"] for each in report.topics)
        findings += len(report.findings)
        if repetition >= 0:
            read_seconds.append(report.read_seconds)
            judge_seconds.append(report.judge_seconds)
    judged = statistics.median(judge_seconds)
    text = (
        f"`audit --from live` of {AUDITED_TOPICS} topics with {entries:,} positions of {AUDITED_BYTES} B"
        f" together, `local[2]`; medians of {repetitions}."
    )
    goals: list[Goal] = [
        ("in addition to the read: at most 5 s", Value(judged, "s", at_most=5)),
        ("findings: none", Value(findings, "findings", at_most=0, digits=0)),
    ]
    rows = [
        ["read and checked block by block", number(statistics.median(read_seconds), "s")],
        ["checks across blocks, in addition", number(judged, "s")],
    ]
    return text, goals, table(["", "time"], rows)


def sink(lab: Onewriter, spark: SparkSession, rows: int, repetitions: int) -> Report:
    """Batches of rows with a key into a topic, each staged by tasks and published once."""
    rates = {
        label: _sink_rate(lab, spark, size, min(rows, SINK_BYTES_MAX // size), repetitions)
        for label, size in SINK_SIZES.items()
    }
    text = (
        f"Batches of {rows:,} rows with a key, or of {SINK_BYTES_MAX / MEGA:.0f} MB if that is less, from"
        f" {SINK_PARTITIONS} tasks, `local[2]`, to the end of the atomic publish; medians of"
        f" {repetitions}, after one that does not count."
    )
    small = Value(rates["100 B"], "rows/s", at_least=50_000, digits=0)
    lines = [
        [label, number(rate, "", 0), number(rate * SINK_SIZES[label] / MEGA, "", 0)]
        for label, rate in rates.items()
    ]
    return text, [("100 B: at least 50,000 rows/s", small)], table(["", "rows/s", "MB/s"], lines)


def _sink_rate(
    lab: Onewriter, spark: SparkSession, size: int, rows: int, repetitions: int
) -> float:
    """Rows per second; the first batch does not count."""
    topic = Topic(f"sink {size}", 1, True, TOPICS[0].compression, 1.0)
    fill(lab.service_url, topic, 1)
    frame = spark.range(0, rows, 1, SINK_PARTITIONS).selectExpr(
        f"rpad(cast(id as string), {size}, '.') as value", "cast(id % 1000 as string) as __key"
    )
    rates = []
    for repetition in range(repetitions + 1):
        named = {"admin.url": lab.admin_url, "topic": topic.name, "txnAppId": "bench"}
        writer = frame.write.format("onewriter").options(**named, txnVersion=repetition)
        began = time.perf_counter()
        writer.mode("append").save()
        if repetition:
            rates.append(rows / (time.perf_counter() - began))
    return statistics.median(rates)


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that one Python process of the executors held, and all of them together."""

    one_bytes: int
    all_bytes: int


def peak_of(work: Callable[[], None]) -> Peak:
    """The memory of the executors' Python processes while something is done."""
    done, one, all_of_them = threading.Event(), [0], [0]

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            found = resident_bytes_of(os.getpid(), PYTHON_WORKER)
            one.append(max(found, default=0))
            all_of_them.append(sum(found))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        work()
    finally:
        done.set()
        sampler.join()
    return Peak(max(one), max(all_of_them))


def memory(lab: Onewriter, spark: SparkSession, messages: int, factor: int = 4) -> Report:
    """The memory of executors' Python while a topic is read, and one of several times its length."""
    short = Topic("memory, short", 1024, True, TOPICS[0].compression, 1.0)
    long = Topic("memory, long", 1024, True, TOPICS[0].compression, 1.0)
    sizes: Sequence[tuple[Topic, int]] = ((short, messages), (long, messages * factor))
    peaks = []
    for topic, count in sizes:
        fill(lab.service_url, topic, count)
        read(spark, lab.admin_url, topic)
        peaks.append(peak_of(partial(read, spark, lab.admin_url, topic)))
    text = (
        "The most that one Python process of the executors held (resident, libraries included) while a"
        f" topic of 1 KiB messages was read, and one {factor} times as long."
    )
    ratio = Ratio(peaks[1].one_bytes, peaks[0].one_bytes, at_most=1.25)
    rows = [
        [
            f"{count:,} messages",
            number(peak.one_bytes / MEGA, "MB"),
            number(peak.all_bytes / MEGA, "MB"),
        ]
        for (_, count), peak in zip(sizes, peaks, strict=True)
    ]
    goal = (f"{factor} times the messages: at most 1.25 times the memory", ratio)
    return text, [goal], table(["", "one process", "all of them"], rows)
