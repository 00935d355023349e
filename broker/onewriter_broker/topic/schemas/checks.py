"""Compares schemas outside the event loop, within a bounded time.

Avro's comparison of two unions takes time in proportion to the cube of their branches, and Python cannot end a
thread. So a separate process makes comparisons that may take long, and ends after CHECK_SECONDS_MAX at the
latest. It is ``python -m onewriter_broker.topic.schemas.checks``, which reads the question from its standard
input and writes the answer to its standard output.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from onewriter_broker.topic.schemas.rules import (
    Incompatible,
    InvalidSchema,
    KeptSchema,
    Schema,
    Strategy,
    check,
    check_follows,
    check_reads,
    weight,
)

CHECK_SECONDS_MAX: Final = 5.0
"""Time limit of one comparison. A schema that takes longer is refused."""

PROCESSES_MAX: Final = 2
"""Comparisons of one broker at the same time, each for another client."""

WEIGHT_IN_THREAD_MAX: Final = 2_500
"""Total weight (``weight``) of schemas that are compared in a thread, which takes some hundredths of a second."""

MEMORY_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Memory limit of the process, including its address space."""


@dataclass(frozen=True, slots=True)
class Question:
    """Whether ``schema`` may follow the schemas ``kept``, which are oldest first.

    For a reader: whether it can read the data of ``kept``.
    """

    schema: Schema
    kept: tuple[KeptSchema, ...]
    strategy: Strategy
    is_reader: bool = False

    @property
    def is_light(self) -> bool:
        """Whether the comparison certainly takes a short time."""
        schemas = (self.schema, *(each.schema for each in self.kept))
        return sum(map(weight, schemas)) <= WEIGHT_IN_THREAD_MAX

    def judge(self) -> None:
        """Raise Incompatible or InvalidSchema if the answer is no."""
        check(self.schema)
        compare = check_reads if self.is_reader else check_follows
        compare(self.schema, self.kept, self.strategy)

    def encode(self) -> bytes:
        fields = {
            "schema": KeptSchema(0, self.schema, 0).encode(),
            "kept": [[each.version, each.encode()] for each in self.kept],
            "strategy": self.strategy.value,
            "is_reader": self.is_reader,
        }
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, data: bytes) -> Question:
        fields = json.loads(data)
        return cls(
            KeptSchema.parse(0, fields["schema"]).schema,
            tuple(KeptSchema.parse(version, text) for version, text in fields["kept"]),
            Strategy(fields["strategy"]),
            fields["is_reader"],
        )


class SchemaChecks:
    """The comparisons of one broker: one at a time for each client, and a few for all clients."""

    def __init__(self, seconds_max: float = CHECK_SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._running = asyncio.Semaphore(PROCESSES_MAX)
        self._of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def judge(self, question: Question, client: str) -> None:
        """As ``Question.judge``, with a time limit. ``client`` names the client that waits."""
        check(question.schema, is_parsed=False)
        lock = self._of.get(client)
        if lock is None:
            lock = self._of[client] = asyncio.Lock()
        async with lock, self._running:
            if question.is_light:
                await asyncio.to_thread(question.judge)
            else:
                await self._judge_apart(question)

    async def _judge_apart(self, question: Question) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(self._seconds_max):
                output, _ = await process.communicate(question.encode())
        except TimeoutError:
            raise Incompatible(
                f"comparing the schema with those of the topic takes longer than {self._seconds_max:g} s:"
                " use one with fewer union branches"
            ) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        _raise_answer(output)


def _raise_answer(output: bytes) -> None:
    try:
        answer: Mapping[str, str] = json.loads(output)
        kind, text = answer["kind"], answer["text"]
    except (ValueError, KeyError, TypeError):
        raise InvalidSchema("the schema cannot be compared with those of the topic") from None
    if kind:
        raise (Incompatible if kind == Incompatible.__name__ else InvalidSchema)(text)


def main() -> None:
    """Read a question from the standard input, and write the answer to the standard output."""
    seconds = int(CHECK_SECONDS_MAX) + 1
    # The process also ends if the broker does not wait for it any more.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    kind = text = ""
    try:
        Question.decode(sys.stdin.buffer.read()).judge()
    except (Incompatible, InvalidSchema) as error:
        kind, text = type(error).__name__, str(error)
    sys.stdout.write(json.dumps({"kind": kind, "text": text}))


if __name__ == "__main__":
    main()
