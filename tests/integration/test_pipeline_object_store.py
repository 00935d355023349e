"""Tables in an object store: a real server with S3's API, whose conditional writes decide which commit wins."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.integration.object_store import BUCKET, SECRET, ObjectStore, object_store
from tests.integration.offloading import Fill, filled, numbered, offload, rows, stored, trim, values

from onewriter_pipeline import cli
from onewriter_pipeline.brokers.connection import Access
from onewriter_pipeline.engine import in_process
from onewriter_pipeline.errors import EngineFailed, Overtaken, TableError
from onewriter_pipeline.jobs.offload import Batch, Offload, Step
from onewriter_pipeline.read.selection import Selection
from onewriter_pipeline.tables.layout import MESSAGES
from onewriter_pipeline.tables.tables import Tables

pytestmark = pytest.mark.full  # needs Go; test_pipeline_offload.py writes to a file system


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store")) as started:
        yield started


@pytest.fixture
def place(store: ObjectStore, topic: str) -> str:
    """Return a location that only this test uses."""
    return f"{store.location}/{topic}"


@pytest.fixture
def tables(store: ObjectStore, place: str) -> Tables:
    return Tables(place, store.options())


@pytest.fixture
def folder(store: ObjectStore, topic: str) -> Path:
    """Return the folder that holds the objects of ``place``."""
    return store.folder / "tables" / topic


def words(store: ObjectStore, place: str, **changes: str) -> list[str]:
    options = store.options(**changes)
    given = [
        word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")
    ]
    return ["--table", place, *given]


def parquet(folder: Path) -> list[Path]:
    return sorted(folder.glob("messages/**/*onewriter-*"))


def test_offload_trim_and_both_tiers(
    access: Access, topic: str, fill: Fill, tables: Tables, folder: Path
) -> None:
    sent = filled(access, topic, fill, tables)
    before = rows(access, topic)
    report = trim(access, tables, topic)
    assert (report.differences, report.limited_by) == ([], "ledger")
    assert len(values(access, topic)) < len(sent)
    assert rows(access, topic, tables) == before
    offload(access, tables, topic, with_audit=True)
    assert values(access, topic, tables, tier="cold") == sent
    assert tables.existing(MESSAGES).optimize(10**8)[0] >= 1
    assert trim(access, tables, topic).differences == []
    assert rows(access, topic, tables) == before
    assert tables.foreign() == []
    assert len(parquet(folder)) > len(tables.existing(MESSAGES).files())
    assert tables.orphans(24) == []


def test_one_of_two_concurrent_offloads_commits(
    access: Access, topic: str, fill: Fill, tables: Tables, store: ObjectStore, folder: Path
) -> None:
    fill(topic, numbered(0, 100))

    def other(step: Step, batch: Batch | None) -> None:
        if step is Step.WRITTEN:
            offload(access, Tables(tables.place.location, store.options()), topic)

    with pytest.raises(Overtaken, match="nothing was committed"):
        offload(access, tables, topic, observe=other)
    assert stored(tables) == numbered(0, 100)
    assert len(parquet(folder)) == len(tables.existing(MESSAGES).files())


def test_where_spark_gives_up_no_objects_are_left(
    access: Access, topic: str, fill: Fill, tables: Tables, folder: Path
) -> None:
    fill(topic, numbered(0, 100))
    seen: list[Path] = []

    def gives_up(what: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterable[Any]:
        in_process(what, tasks)
        seen.extend(parquet(folder))
        raise EngineFailed("Spark failed: its Java is gone")

    job = Offload(access, tables, Selection(topics=(topic,)), with_audit=False)
    with pytest.raises(EngineFailed, match="its Java is gone"):
        job.run(gives_up, 2)
    assert seen
    assert parquet(folder) == []
    assert offload(access, tables, topic).rows == 100


@pytest.mark.parametrize("step", [Step.WRITTEN, Step.COMMITTED])
def test_killed_in_the_middle(
    access: Access, topic: str, fill: Fill, tables: Tables, store: ObjectStore, step: Step
) -> None:
    fill(topic, numbered(0, 300))
    program = (
        "import json, os, signal, sys\n"
        "from onewriter_pipeline.brokers.connection import Access\n"
        "from onewriter_pipeline.engine import in_process\n"
        "from onewriter_pipeline.jobs.offload import Offload, Step\n"
        "from onewriter_pipeline.read.selection import Selection\n"
        "from onewriter_pipeline.tables.tables import Tables\n"
        "url, place, options, topic, step = sys.argv[1:]\n"
        "def observe(done, batch):\n"
        "    if done is Step(step):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "tables = Tables(place, dict(each.split('=', 1) for each in options.split()))\n"
        "Offload(Access(url), tables, Selection(topics=(topic,))).run(in_process, 2, observe)\n"
    )
    options = " ".join(f"{name}={value}" for name, value in store.options().items())
    arguments = [access.url, tables.place.location, options, topic, step.value]
    killed = subprocess.run([sys.executable, "-c", program, *arguments], check=False, timeout=240)
    assert killed.returncode == -signal.SIGKILL
    offload(access, tables, topic)
    assert stored(tables) == numbered(0, 300)
    assert sum(row.rows for row in tables.segments()) == 300


def test_an_object_that_was_altered_trims_nothing(
    access: Access,
    topic: str,
    fill: Fill,
    tables: Tables,
    store: ObjectStore,
    place: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent = filled(access, topic, fill, tables)
    path = max(parquet(folder), key=lambda each: each.stat().st_size)
    contents = pq.ParquetFile(path).metadata.row_group(0).column(0)
    content = bytearray(path.read_bytes())
    # In the rows themselves: other bytes, such as statistics, may change without changing the result.
    content[contents.data_page_offset + contents.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    arguments = ["trim", "--admin-url", access.url, "--topic", topic, *words(store, place)]
    assert cli.run(arguments) == 2
    path.unlink()
    assert cli.run(arguments) == 2
    assert "is gone" in capsys.readouterr().out
    assert values(access, topic) == sent


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "not-the-right-one"}, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "No user exists with the provided access key"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "max_retries": "1"}, "Connection refused"),
    ],
)
def test_an_unreachable_store_is_reported_in_one_sentence(
    access: Access,
    topic: str,
    fill: Fill,
    store: ObjectStore,
    place: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    message: str,
) -> None:
    fill(topic, [b"first"])
    arguments = ["--admin-url", access.url, "--topic", topic, *words(store, place, **changes)]
    for verb in ("offload", "trim"):
        assert cli.run([verb, *arguments]) == 1
        reported = capsys.readouterr()
        assert message in reported.err
        assert len(reported.err.splitlines()) == 1
        assert SECRET not in reported.err + reported.out
        assert changes.get("AWS_SECRET_ACCESS_KEY", SECRET) not in reported.err + reported.out
    assert not folder.exists()


def test_a_bucket_that_there_is_not(
    access: Access, topic: str, fill: Fill, store: ObjectStore
) -> None:
    fill(topic, [b"first"])
    tables = Tables(f"s3://{BUCKET}-2/tables", store.options())
    with pytest.raises(TableError, match=r"NoSuchBucket: The specified bucket does not exist"):
        offload(access, tables, topic)
