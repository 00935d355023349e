"""``make pipeline-demo``: a tour of the pipeline, over topics whose writers took over from each other.

It starts two brokers with their own Valkey. Three topics are each written by several writers, one
after the other: one leaves and the next waiter continues, one is fenced while it is alive (and tries
to write), one is killed. Then it runs all verbs of ``onewriter-pipeline``: offload, audit, trim, a
read across both tiers, snapshot, replay, report. ``--to FOLDER`` keeps the results: the tables, the
audit as JSON, an HTML page with its pictures.

Each step prints its result and checks it; the program fails if a check fails. Spark is started once
for all steps. ``--rounds 1 --messages 200`` is the same tour with fewer messages. It needs
``pip install '.[broker,client,embedded,examples,java,spark]'``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
from pulsar import ProducerAccessMode as Mode

from onewriter.testing import RunningBrokers, running_brokers
from onewriter_pipeline.cli import run
from onewriter_pipeline.engine import running
from onewriter_pipeline.jobs.options import EXIT_VIOLATION
from onewriter_pipeline.tables.files import FileWriter
from onewriter_pipeline.tables.layout import MESSAGES
from onewriter_pipeline.tables.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS = ("orders", "payments", "rates")
WRITERS = ("alice", "bob", "carol")
KEYS = 50
ORDER = ("__topic", "__ledgerId", "__entryId", "__batchIndex")
"""The order in which topics hold their messages."""

VERSION = 1
"""Of the snapshot and the replay that are published."""

GRANTED_SECONDS = 60.0
IN_LINE_SECONDS = 0.2

_processes = multiprocessing.get_context("spawn")


@dataclass
class Findings:
    """What was claimed, and whether it held."""

    failed: list[str] = field(default_factory=list)
    checked: int = 0

    def check(self, claim: str, *, holds: bool) -> None:
        """Say whether a claim holds."""
        self.checked += 1
        print(f"  {'holds ' if holds else 'FAILED'}  {claim}", flush=True)
        if not holds:
            self.failed.append(claim)


# ------------------------------------------------------------ writers


def connected(url: str) -> Any:
    """A stock client that keeps its log to itself."""
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    return pulsar.Client(url, logger=quiet, operation_timeout_seconds=60)


def content(topic: str, number: int) -> bytes:
    return b"%s %d" % (topic.encode(), number)


def produce(client: Any, topic: str, name: str, mode: Any) -> Any:
    """A producer that writes alone; for some modes this waits for its turn."""
    return client.create_producer(
        topic,
        producer_name=name,
        access_mode=mode,
        batching_enabled=True,
        block_if_queue_full=True,
    )


def send(producer: Any, topic: str, numbers: Iterable[int]) -> None:
    """Send messages and wait until the broker has acknowledged them all."""
    for number in numbers:
        producer.send_async(content(topic, number), None, partition_key=f"key-{number % KEYS}")
    producer.flush()


def write_until_killed(
    url: str, topic: str, name: str, first: int, end: int, events: Connection
) -> None:
    """A writer in a process of its own: it says when all of its messages are acknowledged."""
    producer = produce(connected(url), topic, name, Mode.Exclusive)
    send(producer, topic, range(first, end))
    events.send("acknowledged")
    time.sleep(GRANTED_SECONDS)


class Writers:
    """Writes a topic by one writer after the other; ``sent``: how many messages it acknowledged."""

    def __init__(self, brokers: RunningBrokers, topic: str, messages: int) -> None:
        self.topic = topic
        self.sent = 0
        self.stale = self.refused = 0
        """Writes of those who were fenced out, and how many of them were refused."""
        self._url = brokers.service_url
        self._messages = messages
        self._client = connected(self._url)
        self._line = ThreadPoolExecutor(1)
        self._tenures = 0

    def close(self) -> None:
        self._line.shutdown()
        self._client.close()

    def play(self, rounds: int) -> None:
        """Three takeovers a round, of three kinds."""
        for _ in range(rounds):
            holder = self._producer(Mode.Exclusive)
            self._write(holder)
            holder = self._leave(holder)
            self._write(holder)
            holder = self._fence_out(holder)
            self._write(holder)
            holder.close()
            self._write(self._crash()).close()

    def _leave(self, holder: Any) -> Any:
        """The holder leaves; the next waiter continues."""
        next_one = self._ask()
        holder.close()
        return next_one.result(GRANTED_SECONDS)

    def _fence_out(self, holder: Any) -> Any:
        """A producer takes the topic by force, and the former holder tries to write."""
        taker = self._producer(Mode.ExclusiveWithFencing)
        self.stale += 1
        try:
            holder.send(b"written by a stale writer")
        except pulsar.PulsarException:
            self.refused += 1
        return taker

    def _crash(self) -> Any:
        """A process that holds the topic is killed; the next waiter continues."""
        here, there = _processes.Pipe()
        end = self.sent + self._messages
        words = (self._url, self.topic, self._name(), self.sent, end, there)
        process = _processes.Process(target=write_until_killed, args=words, daemon=True)
        process.start()
        if not here.poll(GRANTED_SECONDS):
            raise TimeoutError(f"the writer of {self.topic} does not come to its end")
        self.sent = end
        next_one = self._ask()
        process.kill()
        process.join()
        return next_one.result(GRANTED_SECONDS)

    def _write(self, producer: Any) -> Any:
        send(producer, self.topic, range(self.sent, self.sent + self._messages))
        self.sent += self._messages
        return producer

    def _name(self) -> str:
        self._tenures += 1
        return WRITERS[self._tenures % len(WRITERS)]

    def _producer(self, mode: Any) -> Any:
        return produce(self._client, self.topic, self._name(), mode)

    def _ask(self) -> Future[Any]:
        """Get in line; the result is there when it is our turn."""
        request = self._line.submit(self._producer, Mode.WaitForExclusive)
        time.sleep(IN_LINE_SECONDS)
        return request


def play_all(writers: Iterable[Writers], rounds: int) -> None:
    """All topics at once."""
    with ThreadPoolExecutor(len(TOPICS)) as threads:
        for played in [threads.submit(each.play, rounds) for each in writers]:
            played.result()


# ------------------------------------------------------------ the pipeline


class Tour:
    """The verbs of ``onewriter-pipeline``, one after the other, over one folder, with one Spark."""

    def __init__(
        self,
        spark: SparkSession,
        brokers: RunningBrokers,
        folder: Path,
        writers: list[Writers],
        findings: Findings,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._table = folder / "table"
        self._access = ("--admin-url", brokers.http_url)
        self._url = brokers.http_url
        self._topics = [word for topic in TOPICS for word in ("--topic", topic)]
        self._writers = {each.topic: each for each in writers}
        self._findings = findings

    def verb(self, *words: str, code: int = 0) -> Any:
        """Run ``onewriter-pipeline`` with these words; its JSON document."""
        began = time.monotonic()
        print(f"== onewriter-pipeline {' '.join(words)}", flush=True)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            ended = run([*words, *self._access, "-o", "json"])
        seconds = time.monotonic() - began
        self._findings.check(f"exit code {ended}, {seconds:.1f} s", holds=ended == code)
        return json.loads(output.getvalue())

    def offload(self) -> None:
        """All there is, then what came since."""
        words = ("offload", "--table", str(self._table), *self._topics)
        before = self._sent()
        found = self.verb(*words)["messages"]
        self._check(f"{found:,} messages in the table of {before:,} sent", found == before)
        play_all(self._writers.values(), 1)
        since = self._sent() - before
        found = self.verb(*words)["messages"]
        self._check(f"{found:,} messages more of {since:,} sent meanwhile", found == since)

    def audit(self) -> None:
        """Log and table hold; a table with a row twice does not."""
        table = ("--table", str(self._table))
        found = self.verb("audit", "--from", "both", *table, *self._topics)
        (self._folder / "audit.json").write_text(json.dumps(found, indent=2) + "\n")
        for each in found["audits"]:
            tenures = len(each["timeline"])
            claim = f"one writer at a time, {each['from']}: {tenures} tenures of {len(each['topics'])} topics"
            self._check(claim, each["holds"] and tenures > 0)
            for row in each["leaderless"] if each["from"] == "live" else ():
                print(
                    f"          without a writer, {row['cause']}: {row['windows']} times,"
                    f" p50 {row['p50_ms']:.0f} ms, longest {row['max_ms']:.0f} ms"
                )
        refused = sum(each.refused for each in self._writers.values())
        stale = sum(each.stale for each in self._writers.values())
        self._check(f"{refused} of {stale} writes of stale writers were refused", refused == stale)
        damaged = self._folder / "damaged-table"
        shutil.copytree(self._table, damaged)
        twice = ("audit", "--from", "table", "--table", str(damaged), *self._topics)
        write_rows_twice(Tables(str(damaged)))
        found = self.verb(*twice, code=EXIT_VIOLATION)
        sentences = [each["sentence"] for audit in found["audits"] for each in audit["findings"]]
        self._check(f"a copy with a row twice is found out: {sentences[:1]}", bool(sentences))
        shutil.rmtree(damaged)

    def trim(self) -> None:
        """Drop from the brokers what the table holds, then read both as one."""
        for topic in self.verb("trim", "--table", str(self._table), *self._topics)["topics"]:
            short = topic["topic"].rpartition("/")[2]
            claim = (
                f"{short}: {topic['messagesVerified']:,} messages verified, trimmed below"
                f" {topic['trimmedBefore']}, further not because of: {topic['limitedBy']}"
            )
            self._check(claim, not topic["differences"] and topic["messagesVerified"] > 0)
        left = self._rows().groupBy("__topic").count().collect()
        in_brokers = {row["__topic"].rpartition("/")[2]: row["count"] for row in left}
        rows = self._rows(tier="all", table=str(self._table)).select(*ORDER, "value").toArrow()
        values = rows.sort_by([(name, "ascending") for name in ORDER])["value"].to_pylist()
        sent = [content(name, n) for name in TOPICS for n in range(self._writers[name].sent)]
        claim = f"{in_brokers} in the brokers, {len(values):,} messages in both tiers, as sent"
        self._check(claim, values == sent and sum(in_brokers.values()) < len(sent))

    def _rows(self, **options: str) -> DataFrame:
        """The topics, as Spark reads them."""
        reader = self._spark.read.format("onewriter").option("admin.url", self._url)
        return reader.options(topics=",".join(TOPICS), **options).load()

    def snapshot(self) -> None:
        """The newest message of each key, into a file and a topic; a replay of an epoch."""
        tiers = ("--topic", "rates", "--tier", "all", "--table", str(self._table))
        newest = ("--publish-to", "rates-newest", "--app", "demo", "--version", str(VERSION))
        found = self.verb("snapshot", *tiers, "--to", str(self._folder / "rates"), *newest)
        claim = f"{found['keys']} keys, published: {found['isNew']}"
        self._check(claim, found["keys"] == KEYS and found["isNew"])
        replayed = ("replay", "--topic", "orders", "--tier", "all", "--table", str(self._table))
        again = ("--publish-to", "orders-again", "--app", "demo", "--version", str(VERSION))
        first, second = (self.verb(*replayed, *again)["isNew"] for _ in range(2))
        self._check("replayed twice, published once", first and not second)

    def report(self) -> None:
        """The history of writers, from the table."""
        words = ("report", "--from", "table", "--table", str(self._table), *self._topics)
        found = self.verb(*words, "--to", str(self._folder / "report"))
        files = [Path(each) for each in found["files"]]
        pictures = sum(each.suffix == ".png" and each.stat().st_size > 0 for each in files)
        self._check(f"a page and {pictures} pictures, {files[0]}", found["holds"] and pictures > 0)

    def _sent(self) -> int:
        return sum(each.sent for each in self._writers.values())

    def _check(self, claim: str, holds: bool) -> None:
        self._findings.check(claim, holds=holds)


def write_rows_twice(tables: Tables) -> None:
    """Commit some rows of a table's first file once more."""
    from pyarrow import parquet  # noqa: PLC0415 - processes of writers do without

    messages = tables.existing(MESSAGES)
    file = messages.files()[0]
    where = Path(messages.place.location) / file.path
    rows = parquet.ParquetFile(where).read().to_batches()
    writer = FileWriter(messages.place, file.partition, MESSAGES.columns)
    writer.write(rows[0].slice(0, 1))
    state = messages.state()
    messages.commit(state, [writer.close()], state.offsets)


def tour(folder: Path, rounds: int, messages: int) -> Findings:
    """All of it; what was found."""
    findings = Findings()
    with contextlib.ExitStack() as stack:
        print("== two brokers with a Valkey, three topics", flush=True)
        brokers = stack.enter_context(running_brokers(brokers=2))
        writers = [Writers(brokers, topic, messages) for topic in TOPICS]
        for each in writers:
            stack.callback(each.close)
        began = time.monotonic()
        play_all(writers, rounds)
        sent = sum(each.sent for each in writers)
        seconds = time.monotonic() - began
        takeovers = 3 * rounds * len(writers)
        print(f"  {sent:,} messages, {takeovers} takeovers, {seconds:.1f} s", flush=True)
        spark = stack.enter_context(running("onewriter demo", "local[2]"))
        steps = Tour(spark, brokers, folder, writers, findings)
        steps.offload()
        steps.audit()
        steps.trim()
        steps.snapshot()
        steps.report()
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=Path("var/pipeline-demo"), metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3, help="of three takeovers, of each topic")
    parser.add_argument("--messages", type=int, default=2_000, help="of each tenure")
    given = parser.parse_args()
    began = time.monotonic()
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = given.to.resolve() / stamp
    folder.mkdir(parents=True)
    findings = tour(folder, given.rounds, given.messages)
    print(f"== {time.monotonic() - began:.0f} s; all of it is in {folder}")
    if findings.failed:
        raise SystemExit(f"failed: {'; '.join(findings.failed)}")
    print(f"all {findings.checked} claims held", flush=True)


if __name__ == "__main__":
    main()
