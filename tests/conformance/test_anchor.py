"""The contract of every anchor, and how the file anchor keeps it when processes are paused or race.

To test a further implementation, add its factory to FACTORIES: a function from an empty directory to an
``Opener``, which opens one more client of the same anchor on each call. The Kubernetes implementation runs against
a real API server, as a ServiceAccount with the rights of a broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cluster.accounts import broker_account

from onewriter_broker.anchor.api import Addresses, Anchor, Record, Versioned
from onewriter_broker.anchor.file import VERSIONS_KEPT, FileAnchor
from onewriter_broker.anchor.kubernetes import KubernetesAnchor
from onewriter_broker.kubernetes_api import KubernetesApi
from onewriter_core.errors import ConfigurationError, Unavailable
from onewriter_testing.memory_anchor import MemoryAnchor

Opener = Callable[[], Anchor]

FULL = Record(
    generation=3,
    replid="c" * 40,
    past_replids=("a" * 40, "b" * 40),
    owner="broker-0~1f",
    addresses=Addresses("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080"),
    ledger_high_water=2**53 - 1,
    last_ledger=12,
    clean=True,
    known_since=2,
)


def memory_anchors(directory: Path) -> Opener:
    shared = MemoryAnchor()
    return lambda: shared


def file_anchors(directory: Path) -> Opener:
    return lambda: FileAnchor(directory / "anchor")


FACTORIES: dict[str, Callable[[Path], Opener]] = {"memory": memory_anchors, "file": file_anchors}

KUBERNETES = "kubernetes"
"""The implementation whose tests need the fixtures of a cluster."""


@pytest.fixture(params=[*FACTORIES, pytest.param(KUBERNETES, marks=pytest.mark.full)])
async def open_anchor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    """Open clients of one anchor, and close them at the end."""
    if request.param == KUBERNETES:
        cluster, namespace = map(request.getfixturevalue, ("api_server", "namespace"))
        server = broker_account(cluster, namespace, tmp_path)
        make: Opener = lambda: KubernetesAnchor(KubernetesApi(server), "shard-0")  # noqa: E731
    else:
        make = FACTORIES[request.param](tmp_path)
    opened: list[Anchor] = []

    def opener() -> Anchor:
        opened.append(make())
        return opened[-1]

    yield opener
    for anchor in opened:
        await anchor.close()


async def set_record(anchor: Anchor, bucket: int, record: Record) -> int:
    """Write a record as the only writer."""
    current = await anchor.read(bucket)
    version = await anchor.compare_and_set(bucket, current.version, record)
    assert version is not None
    return version


# The contract.


async def test_a_bucket_never_written_reads_as_an_empty_record(open_anchor: Opener) -> None:
    assert await open_anchor().read(5) == Versioned(0, Record())


async def test_every_client_reads_all_that_was_set(open_anchor: Opener) -> None:
    version = await open_anchor().compare_and_set(5, 0, FULL)
    assert version is not None
    assert await open_anchor().read(5) == Versioned(version, FULL)


async def test_versions_rise_with_every_change(open_anchor: Opener) -> None:
    anchor = open_anchor()
    versions = [await set_record(anchor, 1, replace(FULL, last_ledger=n)) for n in range(40)]
    assert versions == sorted(set(versions))
    assert await anchor.read(1) == Versioned(versions[-1], replace(FULL, last_ledger=39))


async def test_a_change_that_names_an_old_version_is_refused_and_changes_nothing(
    open_anchor: Opener,
) -> None:
    anchor = open_anchor()
    first = await set_record(anchor, 1, replace(FULL, owner="a~1"))
    second = await set_record(anchor, 1, replace(FULL, owner="b~1"))
    for old in (0, first, second + 1):
        assert await anchor.compare_and_set(1, old, replace(FULL, owner="late~1")) is None
    assert (await anchor.read(1)).record.owner == "b~1"


async def test_buckets_do_not_touch_each_other(open_anchor: Opener) -> None:
    anchor = open_anchor()
    await set_record(anchor, 1, replace(FULL, owner="a~1"))
    await set_record(anchor, 11, replace(FULL, owner="b~1"))
    assert (await anchor.read(1)).record.owner == "a~1"
    assert (await anchor.read(11)).record.owner == "b~1"


async def test_of_many_who_change_the_same_version_one_succeeds(open_anchor: Opener) -> None:
    anchors = [open_anchor() for _ in range(8)]
    answers = await asyncio.gather(
        *(
            anchor.compare_and_set(0, 0, replace(FULL, owner=f"broker-{n}~1"))
            for n, anchor in enumerate(anchors)
        )
    )
    winners = [n for n, version in enumerate(answers) if version is not None]
    assert len(winners) == 1
    assert (await anchors[0].read(0)).record.owner == f"broker-{winners[0]}~1"


async def test_concurrent_increments_are_never_lost(open_anchor: Opener) -> None:
    async def increment(anchor: Anchor) -> None:
        done = 0
        while done < 10:
            current = await anchor.read(0)
            more = replace(current.record, ledger_high_water=current.record.ledger_high_water + 1)
            done += await anchor.compare_and_set(0, current.version, more) is not None

    await asyncio.gather(*(increment(open_anchor()) for _ in range(4)))
    assert (await open_anchor().read(0)).record.ledger_high_water == 40


async def test_a_closed_client_leaves_the_record(open_anchor: Opener) -> None:
    anchor = open_anchor()
    await set_record(anchor, 0, FULL)
    await anchor.close()
    assert (await open_anchor().read(0)).record == FULL


# Memory.


async def test_an_unreachable_memory_anchor_raises() -> None:
    anchor = MemoryAnchor()
    anchor.reachable = False
    with pytest.raises(Unavailable):
        await anchor.read(0)
    with pytest.raises(Unavailable):
        await anchor.compare_and_set(0, 0, FULL)


# The file anchor: a process that is paused between two of its steps.


class Pause:
    """Holds a FileAnchor's worker thread at one step until it is released."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, step: str) -> None:
        if step == self._step and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(30)


async def advance(anchor: Anchor, versions: int) -> None:
    for _ in range(versions):
        current = await anchor.read(0)
        await set_record(
            anchor,
            0,
            replace(current.record, ledger_high_water=current.record.ledger_high_water + 1),
        )


def version_files(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in (directory / "bucket-00").glob("*.json"))


@pytest.mark.parametrize("before", [0, 5])
async def test_a_late_link_onto_a_cleaned_version_loses(tmp_path: Path, before: int) -> None:
    others, pause = FileAnchor(tmp_path), Pause("link")
    await advance(others, before)
    paused = FileAnchor(tmp_path, checkpoint=pause)
    attempt = asyncio.ensure_future(  # noqa: TID251 - awaited below
        paused.compare_and_set(0, before, replace(FULL, owner="late~1"))
    )
    await asyncio.to_thread(pause.reached.wait, 30)
    await advance(others, VERSIONS_KEPT + 3)
    assert before + 1 not in version_files(tmp_path), "the version it goes for was cleaned away"
    pause.go_on.set()
    assert await attempt is None
    current = await others.read(0)
    assert (current.version, current.record.owner) == (before + VERSIONS_KEPT + 3, "")
    assert version_files(tmp_path)[0] > before + 1, "nothing of the late attempt stays"


async def test_a_late_link_onto_a_version_that_is_still_there_loses(tmp_path: Path) -> None:
    others, pause = FileAnchor(tmp_path), Pause("link")
    await advance(others, 5)
    paused = FileAnchor(tmp_path, checkpoint=pause)
    attempt = asyncio.ensure_future(paused.compare_and_set(0, 5, FULL))  # noqa: TID251 - awaited below
    await asyncio.to_thread(pause.reached.wait, 30)
    await advance(others, 1)
    pause.go_on.set()
    assert await attempt is None


async def test_first_writer_wins_although_it_is_paused_before_it_knows(tmp_path: Path) -> None:
    others, pause = FileAnchor(tmp_path), Pause("verify")
    await advance(others, 5)
    paused = FileAnchor(tmp_path, checkpoint=pause)
    attempt = asyncio.ensure_future(paused.compare_and_set(0, 5, FULL))  # noqa: TID251 - awaited below
    await asyncio.to_thread(pause.reached.wait, 30)
    await set_record(others, 0, replace(FULL, owner="next~1"))
    pause.go_on.set()
    assert await attempt == 6, "version 7 names it as its predecessor"
    assert (await others.read(0)).record.owner == "next~1"


async def test_a_reader_never_takes_a_stray_file_for_the_record(tmp_path: Path) -> None:
    """The reader has read version 5. Before it confirms, that version is replaced many times."""
    others, pause = FileAnchor(tmp_path), Pause("confirm")
    await advance(others, 5)
    reader = FileAnchor(tmp_path, checkpoint=pause)
    reading = asyncio.ensure_future(reader.read(0))  # noqa: TID251 - awaited below
    await asyncio.to_thread(pause.reached.wait, 30)
    await advance(others, VERSIONS_KEPT + 3)
    pause.go_on.set()
    assert await reading == await others.read(0)


async def test_the_newest_versions_are_kept_and_the_rest_is_cleaned(tmp_path: Path) -> None:
    await advance(FileAnchor(tmp_path), VERSIONS_KEPT + 5)
    assert version_files(tmp_path) == list(range(6, VERSIONS_KEPT + 6))
    assert list((tmp_path / "staging").iterdir()) == []


async def test_a_dead_process_s_temporary_files_are_swept_away(tmp_path: Path) -> None:
    await advance(FileAnchor(tmp_path), 1)
    old, young = tmp_path / "staging" / "0.2.old", tmp_path / "staging" / "0.2.young"
    old.touch()
    young.touch()
    os.utime(old, (1_000_000, 1_000_000))
    await advance(FileAnchor(tmp_path), 1)
    assert list((tmp_path / "staging").iterdir()) == [young]


_HAMMER = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from onewriter_broker.anchor.file import FileAnchor

async def main():
    anchor, won = FileAnchor(Path(sys.argv[1])), []
    while len(won) < 25:
        current = await anchor.read(0)
        more = replace(current.record, ledger_high_water=current.record.ledger_high_water + 1)
        version = await anchor.compare_and_set(0, current.version, more)
        if version is not None:
            won.append((version, more.ledger_high_water))
    print(won)

asyncio.run(main())
"""


def test_processes_that_hammer_one_bucket_never_share_an_increment(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _HAMMER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    won = [pair for output in outputs for pair in json.loads(output.translate({40: 91, 41: 93}))]
    assert len({version for version, _ in won}) == 100, "a version was given to two"
    assert all(version == value for version, value in won), "an increment was lost"


# The file anchor: bad files.


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 1}',
        '{"format": 99, "bucket": 0, "version": 1}',
        '{"format": 1, "bucket": 0, "version": 2}',
        "x" * 100_000,
        "[" * 50_000,
        "\x00\xff",
    ],
)
async def test_a_file_that_is_no_record_is_named(tmp_path: Path, content: str) -> None:
    anchor = FileAnchor(tmp_path)
    await set_record(anchor, 0, FULL)
    (tmp_path / "bucket-00" / "1.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"bucket-00/1\.json is not an anchor record"):
        await anchor.read(0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("generation", -1),
        ("generation", "3"),
        ("generation", True),
        ("ledger_high_water", 2**53),
        ("owner", 7),
        ("clean", 1),
        ("past_replids", [1]),
        ("past_replids", "abc"),
        ("addresses", ["x"]),
        ("addresses", {"broker_url": 1}),
        ("addresses", {"other": "x"}),
        ("surprise", 1),
    ],
)
async def test_a_record_with_a_wrong_value_is_named(
    tmp_path: Path, field: str, value: object
) -> None:
    anchor = FileAnchor(tmp_path)
    await set_record(anchor, 0, FULL)
    path = tmp_path / "bucket-00" / "1.json"
    document = json.loads(path.read_text())
    document["record"][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError, match=r"bucket-00/1\.json"):
        await anchor.read(0)


async def test_a_directory_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    anchor = FileAnchor(tmp_path / "file" / "anchor")
    with pytest.raises(Unavailable, match="anchor"):
        await anchor.read(0)


async def test_a_directory_that_was_moved_away_is_unavailable_and_not_empty(tmp_path: Path) -> None:
    anchor = FileAnchor(tmp_path / "anchor")
    version = await set_record(anchor, 0, FULL)
    (tmp_path / "anchor").rename(tmp_path / "elsewhere")
    with pytest.raises(Unavailable):
        await anchor.read(0)
    with pytest.raises(Unavailable):
        await anchor.compare_and_set(0, version, FULL)
    (tmp_path / "elsewhere").rename(tmp_path / "anchor")
    assert await anchor.read(0) == Versioned(version, FULL)


async def test_a_closed_anchor_is_unavailable(tmp_path: Path) -> None:
    anchor = FileAnchor(tmp_path)
    await anchor.close()
    with pytest.raises(Unavailable, match="closed"):
        await anchor.read(0)


async def test_files_of_other_kinds_stay(tmp_path: Path) -> None:
    anchor = FileAnchor(tmp_path)
    await set_record(anchor, 0, FULL)
    (tmp_path / "bucket-00" / "notes.txt").write_text("hello")
    assert (await anchor.read(0)).record == FULL
