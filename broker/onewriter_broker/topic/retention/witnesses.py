"""The witnesses in the state of a log: what pipelines copied of the log to tables (``onewriter_core.witnesses``).

They are stored under the log's token. A request that does not continue a stored witness is refused, so what was
witnessed once cannot be changed by a later request. Each write names the stored witness that it replaces. A write whose
answer was lost, and that the store executes after a later one, therefore changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from onewriter_broker.log.topic_log.log import TopicLog
from onewriter_broker.topic.retention.trimming import WITNESS, Limit
from onewriter_core.errors import OnewriterError, Unavailable
from onewriter_core.log_format.field_names import WITNESS_PREFIX
from onewriter_core.witnesses import (
    TABLES_MAX,
    InvalidWitness,
    Witness,
    WitnessPost,
    extended,
)

_UNREADABLE: Final = "the witness of table {table} of {log} cannot be read: {error}"


class UnwitnessedTable(OnewriterError):
    """The log has no witness of the table that a trim relies on, or no place for one more table."""


class UnreadableWitness(OnewriterError):
    """The state of the log has a witness that no broker wrote."""


def witnesses_in(log: str, state: Mapping[str, str]) -> list[Witness]:
    """The witnesses in the state of a log, by table. Raises UnreadableWitness."""
    found = []
    for field in sorted(state):
        if not field.startswith(WITNESS_PREFIX):
            continue
        table = field.removeprefix(WITNESS_PREFIX)
        try:
            witness = parse_witness(state[field])
        except InvalidWitness as error:
            text = _UNREADABLE.format(table=table, log=log, error=error)
            raise UnreadableWitness(text) from error
        if witness.table != table:
            raise UnreadableWitness(
                _UNREADABLE.format(table=table, log=log, error=f"it names {witness.table}")
            )
        found.append(witness)
    return found


def parse_witness(text: str) -> Witness:
    """Parse the text of a state field. Raises InvalidWitness."""
    try:
        return Witness.of(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidWitness(str(error)) from error


async def _stored_state(topic_log: TopicLog) -> dict[str, str]:
    """The log's state in the dataset that this broker writes to. The state in memory may lack an undecided write.

    Raises Undecided, also if another dataset answers, and Unavailable.
    """
    binding = topic_log.binding
    if binding is None:
        raise Unavailable(f"{topic_log.name} is not open here; retry")
    return dict(await topic_log.store.read_state(topic_log.name, replid=binding.replid))


async def add_to_witness(topic_log: TopicLog, post: WitnessPost) -> Witness:
    """Add the records of a request to the witness of its table, and return the witness.

    One call at a time: the caller has the topic's lock. Raises ContradictsWitness, UnwitnessedTable,
    UnreadableWitness, Unavailable, and Undecided; after the last one repeat the request.
    """
    state = await _stored_state(topic_log)
    known = {each.table: each for each in witnesses_in(str(topic_log.name), state)}
    if post.table not in known and len(known) >= TABLES_MAX:
        raise UnwitnessedTable(
            f"{topic_log.name} has witnesses of {TABLES_MAX} tables already, {', '.join(known)}: an"
            " administrator has to remove one that is not used any more"
        )
    witness = extended(known.get(post.table), post)
    if witness != known.get(post.table):
        field = WITNESS_PREFIX + post.table
        await topic_log.swap_state(field, state.get(field), _text(witness))
    return witness


async def remove_witness(topic_log: TopicLog, table: str) -> str:
    """Remove the witness of a table, and return its stored text, which may be unreadable.

    Raises UnwitnessedTable, Unavailable, and Undecided.
    """
    field = WITNESS_PREFIX + table
    stored = (await _stored_state(topic_log)).get(field)
    if stored is None:
        raise UnwitnessedTable(f"{topic_log.name} has no witness of table {table}")
    await topic_log.swap_state(field, stored, None)
    return stored


async def witness_limit(topic_log: TopicLog, table: str | None) -> Limit | None:
    """Up to where a log may be trimmed according to its witnesses; None: it has none.

    ``table``: the table that the trim relies on. None: any table of which there is a witness; pipelines of earlier
    releases do not name one. Raises UnwitnessedTable if there is none of that table, UnreadableWitness, Undecided.
    """
    known = witnesses_in(str(topic_log.name), await _stored_state(topic_log))
    if table is not None:
        known = [each for each in known if each.table == table]
        if not known:
            raise UnwitnessedTable(
                f"{topic_log.name} has no witness of table {table}, so nothing shows what was copied:"
                " run offload or trim of this release on the table"
            )
    if not known:
        return None
    last = max(known, key=lambda each: each.end)
    return Limit(last.end, WITNESS, last.table)


def _text(witness: Witness) -> str:
    return json.dumps(witness.document(), separators=(",", ":"))
