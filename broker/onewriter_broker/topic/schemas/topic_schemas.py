"""The schemas of one topic: kept in the state of one of its logs, under that log's token.

Versions count from 0 and are never used twice, not after a deletion either: messages in the log name
them. What may follow what is schema_rules.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.registry.loaded_topic import LoadedTopic
from onewriter_broker.topic.registry.policies import (
    SCHEMA_AUTO_UPDATE,
    SCHEMA_STRATEGY,
    SCHEMA_VALIDATION,
    NamespacePolicies,
    TopicPolicy,
    effective,
)
from onewriter_broker.topic.schemas.checks import Question, SchemaChecks
from onewriter_broker.topic.schemas.rules import (
    DEFAULT_STRATEGY,
    Incompatible,
    InvalidSchema,
    KeptSchema,
    Schema,
    Strategy,
    has_definition,
    same,
)
from onewriter_core.errors import Refused, ServerError
from onewriter_core.ids import EARLIEST

STATE_PREFIX: Final = "schema:"
"""Of the state fields; the version follows."""

VERSIONS_MAX: Final = 200
"""Schemas of one topic, deleted ones included."""

TOTAL_BYTES_MAX: Final = 2 * 1024 * 1024
"""What they take together."""


_parsed = lru_cache(maxsize=VERSIONS_MAX)(KeptSchema.parse)
"""A topic's schemas are not read again for each client that asks for one."""


def kept_in(state: Mapping[str, str]) -> list[KeptSchema]:
    """The schemas in a log's state, oldest first; raises ValueError for one that is none."""
    found = [
        _parsed(int(name.removeprefix(STATE_PREFIX)), text)
        for name, text in state.items()
        if name.startswith(STATE_PREFIX)
    ]
    return sorted(found, key=lambda each: each.version)


def counting(kept: Sequence[KeptSchema]) -> list[KeptSchema]:
    """Those that new ones are compared with: what came behind the last deletion."""
    start = max((index + 1 for index, each in enumerate(kept) if each.is_deleted), default=0)
    return list(kept[start:])


def find(kept: Iterable[KeptSchema], version: int | None) -> KeptSchema | None:
    """One version, or the latest; None: there is no such schema, or it was deleted."""
    if version is None:
        latest = list(kept)[-1:]
        return latest[0] if latest and not latest[0].is_deleted else None
    return next((each for each in kept if each.version == version and not each.is_deleted), None)


class TopicSchemas:
    """The schemas of one loaded topic."""

    def __init__(
        self,
        topic: LoadedTopic,
        namespaces: NamespacePolicies,
        wall_ms: Callable[[], int],
        checks: SchemaChecks,
        client: str,
    ) -> None:
        """``client``: for whom schemas are compared, one at a time (``quotas.book.subject_of``)."""
        self._checks = checks
        self._client = client
        self._topic = topic
        self._namespaces = namespaces
        self._wall_ms = wall_ms

    @property
    def strategy(self) -> Strategy:
        """Which schemas may follow which."""
        found = self._policy(SCHEMA_STRATEGY)
        try:
            return Strategy(found)
        except ValueError:
            return DEFAULT_STRATEGY  # UNDEFINED, or nothing was set

    @property
    def kept(self) -> list[KeptSchema]:
        """All of them, oldest first. Raises Refused when what is stored cannot be understood."""
        try:
            return kept_in(self._log().state)
        except ValueError as error:
            raise Refused(ServerError.METADATA_ERROR, str(error)) from error

    async def add(self, schema: Schema, *, by_administrator: bool = False) -> int:
        """The version of a schema, which is kept from now on if it was not before.

        Raises Refused (INCOMPATIBLE_SCHEMA), Undecided and Unavailable.
        """
        async with self._topic.growing:
            kept = self.kept
            known = self._version_of(schema, kept)
            if known is not None:
                return known
            if not by_administrator and self._policy(SCHEMA_AUTO_UPDATE) is False:
                raise _incompatible("Schema not found and schema auto updating is disabled.")
            await self.check(schema, kept)
            return await self._keep(kept, schema)

    async def check(self, schema: Schema, kept: Sequence[KeptSchema] | None = None) -> None:
        """Raise Refused (INCOMPATIBLE_SCHEMA) when the topic may not get that schema."""
        counts, strategy = counting(self.kept if kept is None else kept), self.strategy

        await self._judge(Question(schema, tuple(counts), strategy))

    async def check_consumer(self, schema: Schema, partition: int, *, may_add: bool) -> None:
        """A consumer brings a schema: it must be able to read the topic's, or is its first.

        ``may_add``: it has the right to produce, too; otherwise it reads a topic without schema as
        it is, and leaves it without one.

        Raises Refused (INCOMPATIBLE_SCHEMA), Undecided and Unavailable.
        """
        counts, strategy = counting(self.kept), self.strategy
        if counts:
            if same(schema, counts[-1].schema) and not strategy.value.endswith("TRANSITIVE"):
                return  # it is what was written last, and is compared with nothing else
            await self._judge(Question(schema, tuple(counts), strategy, is_reader=True))
        elif await self._is_idle(partition):
            if may_add:
                await self.add(schema)
        elif has_definition(schema):
            raise _incompatible("Topic does not have schema to check")

    def check_without(self) -> None:
        """A producer brings no schema. Raises Refused where one is required."""
        if self._policy(SCHEMA_VALIDATION) is True and counting(self.kept):
            raise _incompatible(
                "Producers cannot connect or send message without a schema to topics with a schema "
                "when SchemaValidationEnforced is enabled"
            )

    def version_of(self, schema: Schema) -> int | None:
        """The version of a schema that is kept; None: it is not."""
        return self._version_of(schema, self.kept)

    async def delete(self, *, for_good: bool = False) -> int:
        """Delete the topic's schema: the version of the mark of it, -1 when there is none.

        ``for_good``: forget all versions, also those that messages in the log name. Raises
        Undecided and Unavailable.
        """
        async with self._topic.growing:
            kept = self.kept
            if for_good:
                fields = [f"{STATE_PREFIX}{each.version}" for each in kept]
                if fields:
                    await self._log().save_state({}, fields)
                return kept[-1].version if kept else -1
            if not counting(kept):
                return -1
            return await self._keep(kept, Schema(0), is_deleted=True)

    async def _keep(
        self, kept: Sequence[KeptSchema], schema: Schema, *, is_deleted: bool = False
    ) -> int:
        version = kept[-1].version + 1 if kept else 0
        text = KeptSchema(version, schema, self._wall_ms(), is_deleted).encode()
        total = len(text) + sum(len(each.encode()) for each in kept)
        if len(kept) >= VERSIONS_MAX or total > TOTAL_BYTES_MAX:
            raise _incompatible(
                f"a topic keeps {VERSIONS_MAX} schemas of {TOTAL_BYTES_MAX} bytes together"
            )
        await self._log().save_state({f"{STATE_PREFIX}{version}": text})
        return version

    async def _judge(self, question: Question) -> None:
        """Raise Refused (INCOMPATIBLE_SCHEMA) when the answer is no."""
        try:
            await self._checks.judge(question, self._client)
        except (Incompatible, InvalidSchema) as error:
            raise _incompatible(str(error)) from error

    def _log(self) -> TopicLog:
        """The log that keeps them: where there are some already, else the first one."""
        logs = self._topic.runner.logs
        for topic_log in logs.values():
            if any(name.startswith(STATE_PREFIX) for name in topic_log.state):
                return topic_log
        return logs[min(logs)]

    def _policy(self, policy: TopicPolicy) -> object:
        return effective(policy, self._topic.name, self._topic.entry, self._namespaces)

    @staticmethod
    def _version_of(schema: Schema, kept: Sequence[KeptSchema]) -> int | None:
        for each in reversed(counting(kept)):
            if same(schema, each.schema):
                return each.version
        return None

    async def _is_idle(self, partition: int) -> bool:
        """Whether nobody uses the log and nothing is in it."""
        producers = self._topic.runner.producers.values()
        if any(producer.request.partition == partition for producer in producers):
            return False
        return not await self._topic.runner.logs[partition].read(EARLIEST, 1, 1)


def _incompatible(text: str) -> Refused:
    return Refused(ServerError.INCOMPATIBLE_SCHEMA, text)
