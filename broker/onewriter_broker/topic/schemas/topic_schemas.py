"""The schemas of one topic, stored in the state of one of its logs under that log's token.

Versions count from 0 and are never used twice, not even after a deletion, because messages in the log name
them. rules.py decides which schema may follow which.
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
"""Prefix of the state fields. The version follows."""

VERSIONS_MAX: Final = 200
"""Limit on the schemas of one topic, including deleted ones."""

TOTAL_BYTES_MAX: Final = 2 * 1024 * 1024
"""Size limit of all schemas of one topic."""


_parsed = lru_cache(maxsize=VERSIONS_MAX)(KeptSchema.parse)
"""A cache, so that a topic's schemas are not parsed again for each client that requests one."""


def kept_in(state: Mapping[str, str]) -> list[KeptSchema]:
    """The schemas in a log's state, oldest first. Raises ValueError for an invalid one."""
    found = [
        _parsed(int(name.removeprefix(STATE_PREFIX)), text)
        for name, text in state.items()
        if name.startswith(STATE_PREFIX)
    ]
    return sorted(found, key=lambda each: each.version)


def counting(kept: Sequence[KeptSchema]) -> list[KeptSchema]:
    """The schemas with which new ones are compared: those after the last deletion."""
    start = max((index + 1 for index, each in enumerate(kept) if each.is_deleted), default=0)
    return list(kept[start:])


def find(kept: Iterable[KeptSchema], version: int | None) -> KeptSchema | None:
    """One version, or the latest. None: there is no such schema, or it was deleted."""
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
        """``client``: the client of the comparisons, which has one at a time (``quotas.book.subject_of``)."""
        self._checks = checks
        self._client = client
        self._topic = topic
        self._namespaces = namespaces
        self._wall_ms = wall_ms

    @property
    def strategy(self) -> Strategy:
        """The strategy that decides which schemas may follow which."""
        found = self._policy(SCHEMA_STRATEGY)
        try:
            return Strategy(found)
        except ValueError:
            return DEFAULT_STRATEGY  # UNDEFINED, or no strategy is set

    @property
    def kept(self) -> list[KeptSchema]:
        """All schemas, oldest first. Raises Refused if a stored schema is invalid."""
        try:
            return kept_in(self._log().state)
        except ValueError as error:
            raise Refused(ServerError.METADATA_ERROR, str(error)) from error

    async def add(self, schema: Schema, *, by_administrator: bool = False) -> int:
        """Store a schema, unless it is stored already, and return its version.

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
        """Raise Refused (INCOMPATIBLE_SCHEMA) if the topic may not get that schema."""
        counts, strategy = counting(self.kept if kept is None else kept), self.strategy

        await self._judge(Question(schema, tuple(counts), strategy))

    async def check_consumer(self, schema: Schema, partition: int, *, may_add: bool) -> None:
        """Check the schema of a consumer: it must read the topic's data, or it is the topic's first schema.

        ``may_add``: the consumer also has the right to produce. Without this right, its schema is not added to
        a topic without schema, and the consumer reads the topic as it is.

        Raises Refused (INCOMPATIBLE_SCHEMA), Undecided and Unavailable.
        """
        counts, strategy = counting(self.kept), self.strategy
        if counts:
            if same(schema, counts[-1].schema) and not strategy.value.endswith("TRANSITIVE"):
                return  # the latest schema reads its own data, and no other is compared
            await self._judge(Question(schema, tuple(counts), strategy, is_reader=True))
        elif await self._is_idle(partition):
            if may_add:
                await self.add(schema)
        elif has_definition(schema):
            raise _incompatible("Topic does not have schema to check")

    def check_without(self) -> None:
        """Check a producer without a schema. Raises Refused if a schema is required."""
        if self._policy(SCHEMA_VALIDATION) is True and counting(self.kept):
            raise _incompatible(
                "Producers cannot connect or send message without a schema to topics with a schema "
                "when SchemaValidationEnforced is enabled"
            )

    def version_of(self, schema: Schema) -> int | None:
        """The version of a stored schema. None: it is not stored."""
        return self._version_of(schema, self.kept)

    async def delete(self, *, for_good: bool = False) -> int:
        """Delete the topic's schema. Returns the version of the deletion mark; -1 if there is no schema.

        ``for_good``: forget all versions, also those that messages in the log name. Raises Undecided and
        Unavailable.
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
        """Raise Refused (INCOMPATIBLE_SCHEMA) if the answer is no."""
        try:
            await self._checks.judge(question, self._client)
        except (Incompatible, InvalidSchema) as error:
            raise _incompatible(str(error)) from error

    def _log(self) -> TopicLog:
        """The log that stores the schemas: one that has some already, or else the first one."""
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
        """Whether the log has no producers and no entries."""
        producers = self._topic.runner.producers.values()
        if any(producer.request.partition == partition for producer in producers):
            return False
        return not await self._topic.runner.logs[partition].read(EARLIEST, 1, 1)


def _incompatible(text: str) -> Refused:
    return Refused(ServerError.INCOMPATIBLE_SCHEMA, text)
