"""Tables without a Delta log: Parquet files that are listed in Spark's log of file sinks.

Commit N is the file ``_spark_metadata/N``, which Spark reads when it loads a folder as Parquet. It is created
atomically and only once. Its additional fields, which Spark ignores, have what a commit of a Delta log has. This
works on local disks, where creating a link fails if the name exists.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote

from onewriter_pipeline.errors import Invalid, Overtaken, TableError
from onewriter_pipeline.tables.files import Place, made_folder, reveal, synced_file
from onewriter_pipeline.tables.layout import TABLE_VERSION, Layout, TableFile, check_version
from onewriter_pipeline.tables.table import State

FOLDER: Final = "_spark_metadata"
COMPACT_EVERY: Final = 10
"""Each tenth commit lists all files (Spark's ``spark.sql.streaming.fileSink.log.compactInterval``)."""

_HEAD: Final = "v1"
_HOUR_SECONDS: Final = 3600


class ParquetLog:
    """A table with Spark's log of a file sink. Open it with ``opened``."""

    def __init__(self, place: Place, layout: Layout) -> None:
        self.place = place
        self.layout = layout
        self._root = Path(place.location)
        self._folder = self._root / FOLDER

    @classmethod
    def opened(cls, place: Place, layout: Layout, *, create: bool) -> ParquetLog | None:
        """See DeltaLog."""
        log = cls(place, layout)
        if (log._root / "_delta_log").exists():
            raise Invalid(f"{place.location} has a Delta log: leave out --table-format")
        if not log._folder.is_dir():
            if not create:
                return None
            made_folder(place.within(FOLDER))
        for line in log._lines(log._numbers()[-1:]):
            check_version(place.location, str(line.get("onewriterTable")))
        return log

    # ------------------------------------------------------------ reading

    def identity(self) -> str:
        """See Table. It is the unique name of the first file that was ever committed."""
        first = next(iter(self._files(self._numbers()[:1])), None)
        return "" if first is None else Path(first.path).stem

    def state(self) -> State:
        """See Table."""
        return self._state(self._numbers())

    def files(self) -> list[TableFile]:
        """See Table."""
        return self._files(self._numbers())

    def snapshot(self) -> tuple[State, list[TableFile]]:
        """See Table."""
        numbers = self._numbers()
        return self._state(numbers), self._files(numbers)

    def _state(self, numbers: Sequence[int]) -> State:
        """The state after the last of some commits."""
        return State(numbers[-1], self._commit(numbers[-1])["offsets"]) if numbers else State()

    def _files(self, numbers: Sequence[int]) -> list[TableFile]:
        return [_file(line) for line in self._lines(numbers) if "onewriterFile" in line]

    def coverage_since(self, batch: int | None) -> Iterator[tuple[int, list[list[Any]]]]:
        """See Table."""
        for number in self._numbers():
            if batch is None or number > batch:
                yield number, self._commit(number)["coverage"]

    def unused(self, hours: int) -> list[str]:
        """See Table."""
        used = {file.path for file in self.files()}
        before = time.time_ns() / 1e9 - hours * _HOUR_SECONDS
        return [
            str(path.relative_to(self._root))
            for path in self._root.rglob("*.parquet")
            if str(path.relative_to(self._root)) not in used and path.stat().st_mtime < before
        ]

    def _numbers(self) -> list[int]:
        names = (path.name.removesuffix(".compact") for path in self._folder.glob("[0-9]*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _lines(self, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
        """The lines of commits, each once. A commit that lists all files replaces the earlier ones."""
        for number in numbers:
            for line in self._text(number).splitlines()[1:]:
                found: dict[str, Any] = json.loads(line)
                if found.get("onewriterBatch", number) == number:
                    yield found

    def _commit(self, number: int) -> dict[str, Any]:
        for line in self._lines([number]):
            if "onewriterCommit" in line:
                found: dict[str, Any] = line["onewriterCommit"]
                return found
        raise TableError(f"{self._folder / str(number)} is not a commit of onewriter")

    def _text(self, number: int) -> str:
        try:
            return (self._folder / _name(number)).read_text(encoding="utf-8")
        except OSError as error:
            raise TableError(f"{self.place.location}: {error}") from error

    # ------------------------------------------------------------ writing

    def commit(
        self,
        state: State,
        files: Sequence[TableFile],
        offsets: Mapping[str, str],
        coverage: Sequence[Sequence[object]] = (),
    ) -> State:
        """See Table. Offsets are stored with files, so a commit without files does nothing."""
        if not files:
            return state
        reveal(self.place, files)
        number = state.next_batch
        lines = [self._line(file, number) for file in files]
        lines[0]["onewriterCommit"] = {"offsets": dict(offsets), "coverage": coverage}
        if number % COMPACT_EVERY == COMPACT_EVERY - 1:
            lines = [*self._lines(self._numbers()), *lines]
        text = "\n".join([_HEAD, *map(json.dumps, lines)])
        staged = self._folder / f".{uuid.uuid4().hex}.tmp"
        try:
            staged.write_text(text, encoding="utf-8")
            synced_file(staged)
            os.link(staged, self._folder / _name(number))
            synced_file(self._folder)
        except FileExistsError:
            raise Overtaken(
                f"another process wrote to {self.place.location} at the same time: nothing was"
                " committed; run it again"
            ) from None
        except OSError as error:
            raise TableError(f"{self.place.location}: {error}") from error
        finally:
            staged.unlink(missing_ok=True)
        return State(number, dict(offsets))

    def _line(self, file: TableFile, number: int) -> dict[str, Any]:
        path = quote(str(self._root / file.path), safe="/=")
        return {
            "path": f"file://{path}",
            "size": file.size,
            "isDir": False,
            "modificationTime": file.modified_ms,
            "blockReplication": 1,
            "blockSize": file.size,
            "action": "add",
            "onewriterTable": TABLE_VERSION,
            "onewriterBatch": number,
            "onewriterFile": {
                "path": file.path,
                "rows": file.rows,
                "partition": dict(file.partition),
                "bounds": {name: list(pair) for name, pair in file.bounds.items()},
            },
        }

    # ------------------------------------------------------------ keeping house

    def optimize(self, target_bytes: int) -> NoReturn:
        """Not available without a Delta log."""
        del target_bytes
        raise Invalid("a table without a Delta log cannot be compacted")

    def expire(self, before: date) -> NoReturn:
        """Not available without a Delta log."""
        del before
        raise Invalid("a table without a Delta log cannot drop old days")


def _name(number: int) -> str:
    return f"{number}.compact" if number % COMPACT_EVERY == COMPACT_EVERY - 1 else str(number)


def _file(line: Mapping[str, Any]) -> TableFile:
    document = line["onewriterFile"]
    bounds = {name: (low, high) for name, (low, high) in document["bounds"].items()}
    modified = line["modificationTime"]
    return TableFile(
        document["path"], line["size"], document["rows"], document["partition"], bounds, modified
    )
