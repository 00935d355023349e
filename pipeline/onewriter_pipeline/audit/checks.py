"""The predicates as SQL over facts and audit records. Each query returns predicate, log, place and sentence.

The predicates are those of docs/invariants.md, and the sentences are those of ``onewriter verify``. The queries
name the tables of ``tables_of``. There are few facts per chunk of a log, so no query sorts entries. Only prints are
counted one by one, in ledgers without a single holder.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onewriter_pipeline.audit import facts

LOGS: Final = pa.schema(
    [
        ("log", pa.string()),
        ("bucket", pa.int64()),
        ("settled", pa.int64()),
        ("state_epoch", pa.int64()),
        ("state_ledger", pa.int64()),
        ("bucket_ledger", pa.int64()),
        ("published", pa.map_(pa.string(), pa.int64())),
        ("trimmed_ledger", pa.int64()),
        ("trimmed_entry", pa.int64()),
    ]
)
"""The audited logs. ``settled``: the highest ledger whose marker must exist; null: every fence must have one. The
other columns are the store's state of the log (``LogState``), null if it was not requested.
"""

_BEFORE: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"

STANDS: Final = f"""
    SELECT *,
        max(ledger * 2 + is_run) OVER (PARTITION BY log, era ORDER BY ordinal {_BEFORE}) AS top,
        max(last) OVER (PARTITION BY log, era, ledger ORDER BY ordinal {_BEFORE}) AS behind,
        max(struct(ledger, last)) OVER (PARTITION BY log ORDER BY ordinal {_BEFORE}) AS reached
    FROM (
        SELECT log, kind, ordinal, ledger, first, last, if(kind = 'run', 1, 0) AS is_run,
            count_if(kind = 'cut') OVER (PARTITION BY log ORDER BY ordinal) AS era
        FROM along
    )"""
"""The view ``stands``: a log from its beginning to its end, each row with what precedes it."""

ORDER: Final = """
    SELECT predicate, log, place, sentence FROM (
        SELECT log,
            CASE
                WHEN kind = 'marker' AND ledger <= top DIV 2 THEN 'S1'
                WHEN kind = 'marker' THEN NULL
                WHEN ledger < top DIV 2 THEN if(top % 2 = 0, 'S4', 'S1')
                WHEN ledger > top DIV 2 THEN 'S4'
                WHEN first <= behind THEN 'S1'
                WHEN first > behind + 1 THEN 'S5'
            END AS predicate,
            CASE
                WHEN kind = 'run' AND ledger = top DIV 2 AND first > behind + 1
                    THEN concat(ledger, '-', behind + 1, ',', ledger, '-', first)
                ELSE concat(ledger, '-', first)
            END AS place,
            CASE
                WHEN kind = 'marker' THEN concat('a marker follows on ledger ', top DIV 2)
                WHEN ledger < top DIV 2 THEN concat('entries of ledger ', ledger,
                    ' are after the marker of ledger ', top DIV 2)
                WHEN ledger > top DIV 2
                    THEN concat('ledger ', ledger, ' begins without its marker')
                WHEN first <= behind THEN concat('entry ', first, ' follows on entry ', behind)
                ELSE concat(first - behind - 1, ' entries are missing before ', ledger, '-',
                    first)
            END AS sentence
        FROM stands WHERE top IS NOT NULL AND kind <> 'cut'
    ) WHERE predicate IS NOT NULL"""

MARKERS: Final = f"""
    SELECT predicate, log, place, sentence FROM (
        SELECT m.log, concat(m.ledger, '-0', coalesce(concat(',audit ', f.id), '')) AS place,
            CASE
                WHEN m.epoch < m.before THEN 'S1'
                WHEN m.epoch > m.ledger THEN 'S1'
                WHEN m.producer IS NOT NULL AND m.epoch = m.holder.epoch AND
                    (m.producer, m.subject) <> (m.holder.producer, m.holder.subject) THEN 'S2'
                WHEN f.broker <> m.owner THEN 'S2'
                WHEN NOT (f.changes_hands OR f.is_first) THEN NULL
                WHEN m.epoch <> f.epoch THEN 'S3'
                WHEN m.epoch IS NOT NULL AND f.producer <> '' AND m.producer <> f.producer
                    THEN 'S2'
            END AS predicate,
            CASE
                WHEN m.epoch < m.before
                    THEN concat('epoch ', m.epoch, ' follows on epoch ', m.before)
                WHEN m.epoch > m.ledger
                    THEN concat('epoch ', m.epoch, ' is above its ledger ', m.ledger)
                WHEN m.producer IS NOT NULL AND m.epoch = m.holder.epoch AND
                    (m.producer, m.subject) <> (m.holder.producer, m.holder.subject)
                    THEN concat('epoch ', m.epoch, ' was held by ', m.holder.producer,
                        ' and is now held by ', m.producer)
                WHEN f.broker <> m.owner THEN concat('ledger ', m.ledger, ' belongs to ', m.owner,
                    ', by the audit to ', f.broker)
                WHEN m.epoch <> f.epoch THEN concat('the marker says epoch ', m.epoch,
                    ', the audit epoch ', f.epoch)
                ELSE concat('the marker names ', m.producer, ' as holder, the audit ', f.producer)
            END AS sentence
        FROM (
            SELECT *,
                max(epoch) OVER (PARTITION BY log ORDER BY ordinal {_BEFORE}) AS before,
                last_value(
                    if(epoch IS NOT NULL AND producer IS NOT NULL,
                        struct(epoch, producer, subject), NULL), true
                ) OVER (PARTITION BY log ORDER BY ordinal {_BEFORE}) AS holder
            FROM markers
        ) m LEFT JOIN first_fences f ON m.log = f.log AND m.ledger = f.ledger
    ) WHERE predicate IS NOT NULL"""

FENCED: Final = """
    SELECT 'S4' AS predicate, f.log, concat(f.ledger, '-0,audit ', f.id) AS place,
        concat('ledger ', f.ledger, ' was fenced, but the log has no marker of it') AS sentence
    FROM first_fences f
    JOIN logs l ON l.log = f.log
    LEFT JOIN (
        SELECT log, min_by(ledger, ordinal) AS begins FROM along GROUP BY log
    ) b ON b.log = f.log
    LEFT JOIN (SELECT log, max(ledger) AS newest FROM first_fences GROUP BY log) n ON n.log = f.log
    LEFT ANTI JOIN markers m ON m.log = f.log AND m.ledger = f.ledger
    WHERE f.ledger <= coalesce(l.settled, f.ledger)
        AND if(b.begins IS NULL, f.ledger = n.newest, f.ledger > b.begins)
        AND NOT EXISTS (
            SELECT 1 FROM along c WHERE c.kind = 'cut' AND c.log = f.log AND f.ledger <= c.ledger
        )"""

UNGRANTED: Final = """
    SELECT 'S4' AS predicate, m.log, concat(m.ledger, '-0') AS place,
        concat('ledger ', m.ledger, ' has a marker, but the audit has no such fence') AS sentence
    FROM markers m
    JOIN logs l ON l.log = m.log
    JOIN (
        SELECT bucket, min_by(ledger, ordinal) AS ledger, min_by(time_ms, ordinal) AS time_ms
        FROM fence_records GROUP BY bucket
    ) o ON o.bucket = l.bucket
    LEFT ANTI JOIN first_fences f ON f.log = m.log AND f.ledger = m.ledger
    WHERE m.ledger > o.ledger AND coalesce(m.time_ms, 0) > o.time_ms"""

TAILS: Final = """
    SELECT 'S5' AS predicate, log,
        concat(reached.ledger, '-', reached.last, ',', last_ledger, '-', last_entry, ',', ledger, '-0')
            AS place,
        concat('entries were acknowledged up to ', last_ledger, '-', last_entry,
            ', the log ends at ', reached.ledger, '-', reached.last) AS sentence
    FROM (
        SELECT s.log, s.ledger, s.reached, f.last_ledger, f.last_entry FROM stands s
        JOIN first_fences f ON f.log = s.log AND f.ledger = s.ledger
        WHERE s.kind = 'marker' AND s.top IS NOT NULL AND f.last_entry > 0
            AND (f.last_ledger, f.last_entry) > (s.reached.ledger, s.reached.last)
    ) t
    WHERE NOT EXISTS (
        SELECT 1 FROM losses r WHERE r.log = t.log
            AND (r.after_ledger, r.after_entry) <= (t.reached.ledger, t.reached.last)
            AND (t.last_ledger, t.last_entry) <= (r.last_ledger, r.last_entry)
    )"""

EPOCHS: Final = f"""
    SELECT predicate, log, place, sentence FROM (
        SELECT log, concat(coalesce(concat('audit ', before.id, ','), ''), 'audit ', id) AS place,
            CASE
                WHEN grants AND epoch = holder.epoch THEN 'S2'
                WHEN epoch < before.epoch THEN 'S3'
                WHEN changes_hands AND epoch <> ledger THEN 'S3'
                WHEN epoch > ledger THEN 'S3'
                WHEN producer <> '' AND epoch = holder.epoch AND
                    (producer, subject) <> (holder.producer, holder.subject) THEN 'S2'
            END AS predicate,
            CASE
                WHEN grants AND epoch = holder.epoch
                    THEN concat('epoch ', epoch, ' was granted twice')
                WHEN epoch < before.epoch
                    THEN concat('epoch ', epoch, ' was written after epoch ', before.epoch)
                WHEN changes_hands AND epoch <> ledger THEN concat('epoch ', epoch,
                    ' began with ledger ', ledger, ': they must be one number')
                WHEN epoch > ledger THEN concat('epoch ', epoch, ' is above its ledger ', ledger)
                ELSE concat('epoch ', epoch, ' was held by ', holder.producer, ' and then by ',
                    producer)
            END AS sentence
        FROM (
            SELECT *, fence_kind = 'grant' AS grants,
                max(struct(greatest(epoch, old_epoch) AS epoch, id))
                    OVER (PARTITION BY log ORDER BY ordinal {_BEFORE}) AS before,
                last_value(if(producer <> '', struct(epoch, producer, subject), NULL), true)
                    OVER (PARTITION BY log ORDER BY ordinal {_BEFORE}) AS holder
            FROM fence_records WHERE is_first OR changes_hands
        )
    ) WHERE predicate IS NOT NULL"""

FORGOTTEN: Final = f"""
    SELECT 'S12' AS predicate, log, concat('audit ', before.id, ',audit ', id) AS place,
        concat('epoch ', before.epoch, ' had been granted, but this fence knew only ', old_epoch)
            AS sentence
    FROM (
        SELECT *,
            max(struct(greatest(epoch, old_epoch) AS epoch, id))
                OVER (PARTITION BY log ORDER BY ordinal {_BEFORE}) AS before,
            lag(struct(fence_kind, incarnation, broker, old_epoch))
                OVER (PARTITION BY log ORDER BY ordinal) AS previous
        FROM fence_records WHERE is_first OR changes_hands
    )
    WHERE is_first AND old_epoch < before.epoch
        AND NOT previous <=> struct(fence_kind, incarnation, broker, old_epoch)"""

LEDGERS: Final = """
    SELECT 'S3' AS predicate, log, concat('audit ', before.id, ',audit ', id) AS place,
        concat('ledger ', ledger, ' was fenced after ledger ', before.ledger) AS sentence
    FROM (
        SELECT *, lag(struct(ledger, id)) OVER (PARTITION BY log ORDER BY ordinal) AS before
        FROM fence_records
    ) WHERE ledger < before.ledger
    UNION ALL
    SELECT 'S2', explode(array_distinct(array(log, given.log))),
        concat('audit ', given.id, ',audit ', id),
        concat('ledger ', ledger, ' was handed out twice',
            if(broker = given.broker, '', concat(', to ', given.broker, ' and to ', broker)))
    FROM (
        SELECT *, first_value(struct(id, log, broker))
            OVER (PARTITION BY bucket, ledger ORDER BY ordinal) AS given
        FROM fence_records WHERE is_first
    ) WHERE id <> given.id"""

RESUMES: Final = """
    SELECT predicate, log, place, sentence FROM (
        SELECT f.log, concat('audit ', f.id, ',audit ', r.id) AS place,
            CASE
                WHEN r.epoch <> f.epoch THEN 'S3'
                WHEN r.producer <> '' AND f.producer <> '' AND r.producer <> f.producer THEN 'S2'
            END AS predicate,
            if(r.epoch <> f.epoch,
                concat('epoch ', r.epoch, ' was resumed under ledger ', r.ledger, ' of epoch ',
                    f.epoch),
                concat('epoch ', r.epoch, ' of ', f.producer, ' was resumed by ', r.producer)
            ) AS sentence
        FROM resumes r JOIN first_fences f
            ON f.bucket = r.bucket AND f.ledger = r.ledger AND f.topic = r.topic
        WHERE f.is_first AND (f.partitions = 1 OR f.changes_hands)
    ) WHERE predicate IS NOT NULL"""

_FIRST_BY: Final = {
    "Fifo": "waiting.arrival < promoted.arrival",
    "Priority": "(-waiting.priority, waiting.arrival) < (-promoted.priority, promoted.arrival)",
    "Balanced": "(-waiting.priority, coalesce(waiting.load, 0), waiting.arrival)"
    " < (-promoted.priority, coalesce(promoted.load, 0), promoted.arrival)",
}

CHOICES: Final = f"""
    SELECT 'S11' AS predicate, log, concat('audit ', id) AS place,
        concat(producer, ' (priority ', promoted.priority, ', arrival ', promoted.arrival,
            ') was promoted before a waiter of priority ', waiting.priority, ', arrival ',
            waiting.arrival) AS sentence
    FROM choices
    WHERE is_first AND fence_kind = 'grant' AND mode = 'WAIT_FOR_EXCLUSIVE'
        AND cause <> 'Handover' AND waiting.fits
        AND CASE policy
            {" ".join(f"WHEN '{name}' THEN {rule}" for name, rule in _FIRST_BY.items())}
            WHEN '' THEN {" AND ".join(_FIRST_BY.values())}
            ELSE false
        END"""

STATES: Final = """
    SELECT 'S12' AS predicate, log, 'state' AS place,
        CASE
            WHEN state_ledger = 0 THEN 'the state of the log is gone'
            WHEN state_epoch < epoch
                THEN concat('epoch ', epoch, ' was granted, but the state knows only ', state_epoch)
            WHEN state_ledger < ledger
                THEN concat('ledger ', ledger, ' was fenced, but the state knows only ', state_ledger)
            ELSE concat('ledger ', ledger, ' was fenced, but the bucket knows only ', bucket_ledger)
        END AS sentence
    FROM (
        SELECT l.log, state_epoch, state_ledger, bucket_ledger, max(k.ledger) AS ledger,
            max(k.epoch) AS epoch
        FROM remembered l JOIN (
            SELECT log, ledger, epoch, false AS is_fence FROM markers UNION ALL
            SELECT log, ledger, greatest(epoch, old_epoch), true FROM first_fences
        ) k ON k.log = l.log AND (NOT k.is_fence OR k.ledger <= coalesce(l.settled, k.ledger))
        GROUP BY l.log, state_epoch, state_ledger, bucket_ledger
    ) WHERE state_epoch < epoch OR state_ledger < ledger OR bucket_ledger < ledger"""

HORIZON: Final = """
    SELECT 'S5' AS predicate, b.log,
        concat(trimmed_ledger, '-', trimmed_entry, ',', begins.ledger, '-', begins.first) AS place,
        concat('the log was trimmed up to ', trimmed_ledger, '-', trimmed_entry,
            ' at most, but begins at ', begins.ledger, '-', begins.first) AS sentence
    FROM (
        SELECT log, min_by(struct(ledger, first), ordinal) AS begins
        FROM along WHERE kind <> 'cut' GROUP BY log
    ) b JOIN remembered l ON l.log = b.log
    WHERE trimmed_ledger IS NOT NULL
        AND (begins.ledger, begins.first) > (trimmed_ledger, trimmed_entry)
        AND NOT (begins.first = 0 AND EXISTS (SELECT 1 FROM losses r WHERE r.log = b.log))"""
"""A trim, or a loss that the broker reported, must explain where a log begins."""

WRITERS: Final = """
    SELECT 'S2' AS predicate, log, concat(ledger, '-', min(first)) AS place,
        first(concat('epoch ', epoch, ' is held by ', holder, ', but this entry says it is by ',
            producer)) AS sentence
    FROM (
        SELECT w.log, w.ledger, w.first, w.producer, h.epoch, h.producer AS holder
        FROM writers w JOIN held h ON h.log = w.log AND h.ledger = w.ledger
        WHERE w.producer <> h.producer
    ) GROUP BY log, ledger"""

_FALLS: Final = """concat('sequence id ', sequence, ' of ', producer, ' follows on its ', {before},
    ' and was published no later')"""
_TORN: Final = """concat('chunk ', chunk, ' of message ', uuid, ' of ', producer,
    ' without the one before it')"""

WRONGS: Final = f"""
    SELECT 'S6' AS predicate, log, concat(ledger, '-', first, ',', ledger, '-', last) AS place,
        if(kind = 'fall', {_FALLS.format(before="last_sequence")}, {_TORN}) AS sentence
    FROM (
        SELECT w.* FROM wrongs w
        JOIN held h ON h.log = w.log AND h.ledger = w.ledger AND h.producer = w.producer
    )"""

SEQUENCES: Final = f"""
    SELECT 'S6' AS predicate, log,
        concat(coalesce(concat(before.ledger, '-', before.last, ','), ''), ledger, '-', first)
            AS place,
        if(is_torn, {_TORN}, {_FALLS.format(before="before.last_sequence")}) AS sentence
    FROM (
        SELECT *,
            before IS NOT NULL AND (sequence, chunk) <= (before.last_sequence, before.last_chunk)
                AND published_ms <= before.last_published_ms AS falls,
            chunk > 0 AND if(before IS NULL, epoch = ledger AND first = 1,
                (sequence, chunk) > (before.last_sequence, before.last_chunk)
                AND (uuid <> before.last_uuid OR chunk <> before.last_chunk + 1)) AS is_torn
        FROM (
            SELECT w.log, w.ledger, w.first, w.sequence, w.chunk, w.published_ms, w.uuid,
                w.producer, h.epoch,
                lag(struct(w.ledger, w.last, w.last_sequence, w.last_chunk, w.last_published_ms,
                    w.last_uuid))
                    OVER (PARTITION BY w.log, h.epoch, w.producer ORDER BY w.ordinal) AS before
            FROM writers w
            JOIN held h ON h.log = w.log AND h.ledger = w.ledger AND h.producer = w.producer
        )
    )
    WHERE (falls OR is_torn)
        AND (before IS NULL OR (ledger, first) > (before.ledger, before.last))"""

PUBLISHES: Final = """
    SELECT 'S15' AS predicate, log, concat(before.ledger, '-', before.first, ',', ledger, '-', first)
            AS place,
        concat('version ', sequence, ' of ', producer, ' follows on its version ', before.sequence)
            AS sentence
    FROM (
        SELECT *, lag(struct(ledger, first, last_sequence AS sequence))
            OVER (PARTITION BY log, producer ORDER BY ordinal) AS before
        FROM publishes
    ) p
    WHERE sequence <= before.sequence AND NOT EXISTS (
        SELECT 1 FROM forgets r WHERE r.log = p.log AND r.app = p.producer
    )"""

UNREMEMBERED: Final = """
    SELECT 'S15' AS predicate, p.log, concat(newest.ledger, '-', newest.first, ',state') AS place,
        concat('version ', newest.version, ' of ', producer, ' is published, but the state knows ',
            coalesce(published[producer], 'none')) AS sentence
    FROM (
        SELECT log, producer, max(struct(last_sequence AS version, ledger, first)) AS newest
        FROM publishes GROUP BY log, producer
    ) p JOIN remembered l ON l.log = p.log
    WHERE state_ledger > 0 AND coalesce(published[producer], -1) < newest.version AND NOT EXISTS (
        SELECT 1 FROM forgets r WHERE r.log = p.log AND r.app = p.producer
    )"""

_WHO: Final = """CASE WHEN {of}.subject = '' THEN 'anonymous' WHEN {of}.pod_uid = '' THEN {of}.subject
    ELSE concat({of}.subject, ' (pod ', {of}.pod_uid, ')') END"""

_FIRST_EPOCHS: Final = """(
        SELECT log, min_by(epoch, ordinal) AS epoch FROM fence_records
        WHERE is_first OR changes_hands GROUP BY log
    )"""
"""The epoch of the first fence of each log in the audit. The audit has all later grants."""

PUBLISHERS: Final = f"""
    SELECT 'S15' AS predicate, p.log, concat(p.ledger, '-', p.first) AS place,
        concat('publish ', p.uuid, if(p.epoch IS NULL,
            concat(' by ', p.who, ' is in ledger ', p.ledger, ', which no producer held'),
            concat(' is by ', p.who, ', but the audit has no record that it published ', p.producer,
                ' under epoch ', p.epoch))) AS sentence
    FROM (
        SELECT p.*, {_WHO.format(of="p")} AS who, l.bucket, coalesce(m.owner, f.broker) AS owner,
            CASE
                WHEN m.log IS NOT NULL AND m.producer IS NOT NULL THEN m.epoch
                WHEN m.log IS NULL AND f.producer <> '' THEN f.epoch
            END AS epoch
        FROM publishers p
        JOIN logs l ON l.log = p.log
        LEFT JOIN markers m ON m.log = p.log AND m.ledger = p.ledger
        LEFT JOIN first_fences f ON f.log = p.log AND f.ledger = p.ledger
            AND (f.changes_hands OR f.is_first)
    ) p
    LEFT JOIN {_FIRST_EPOCHS} o ON o.log = p.log
    LEFT JOIN first_fences g ON g.log = p.log AND g.ledger = p.epoch
    LEFT JOIN (SELECT DISTINCT bucket, broker FROM recorded) b
        ON b.bucket = p.bucket AND b.broker = p.owner
    LEFT ANTI JOIN recorded r ON r.log = p.log AND r.epoch = p.epoch AND r.app = p.producer
        AND r.subject = p.subject AND (r.pod_uid = p.pod_uid OR r.pod_uid = '*' AND r.subject <> '')
    WHERE p.owner IS NOT NULL AND (p.subject <> '' OR b.broker IS NOT NULL)
        AND (p.epoch IS NULL OR g.log IS NOT NULL OR coalesce(o.epoch < p.epoch, false))"""

PASSED_ON: Final = f"""
    SELECT 'S15' AS predicate, log, place, sentence FROM (
        SELECT r.log, concat(coalesce(concat('audit ', g.id, ','), ''), 'audit ', r.id) AS place,
            CASE
                WHEN g.log IS NULL AND (h.log IS NOT NULL OR o.epoch < r.epoch)
                    THEN concat({_WHO.format(of="r")}, ' published ', r.app, ' under epoch ',
                        r.epoch, ', which was not granted')
                WHEN r.granted_to <> if(g.producer <> '', g.subject, 'no producer')
                    THEN concat(r.app, ' was published under epoch ', r.epoch, ' of ', r.granted_to,
                        ', but that was granted to ', if(g.producer <> '', g.subject, 'no producer'))
                WHEN NOT r.is_passed_on AND {_WHO.format(of="r")} <> g.subject
                    THEN concat({_WHO.format(of="r")}, ' published ', r.app,
                        ' as the holder of epoch ', r.epoch, ', but that was granted to ', g.subject)
            END AS sentence
        FROM recorded r
        LEFT JOIN first_fences g ON g.log = r.log AND g.ledger = r.epoch AND g.changes_hands
        LEFT JOIN first_fences h ON h.log = r.log AND h.ledger = r.epoch
        LEFT JOIN {_FIRST_EPOCHS} o ON o.log = r.log
    ) WHERE sentence IS NOT NULL"""

KEPT_ROWS: Final = """
    SELECT 'S5' AS predicate, log, concat(ledger, '-', first) AS place,
        concat('messages of entry ', ledger, '-', first, ' are stored twice in the table') AS sentence
    FROM (
        SELECT *, max(struct(last, last_chunk)) OVER (PARTITION BY log, ledger ORDER BY first, chunk
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM kept
    ) WHERE (first, chunk) <= (before.last, before.last_chunk)"""

PRINTS: Final = """
    SELECT 'S6' AS predicate, p.log,
        concat_ws(',', sort_array(collect_list(concat(p.ledger, '-', p.first)))) AS place,
        concat('sequence id ', p.sequence, ' of ', p.producer, ' is stored twice') AS sentence
    FROM prints p LEFT ANTI JOIN held h ON h.log = p.log AND h.ledger = p.ledger
    GROUP BY p.log, p.producer, p.sequence, p.print HAVING count(*) > 1"""
"""Over the view ``prints``, which may be large."""


class Check(NamedTuple):
    """A query. If one of the tables in ``needs`` is empty, it finds nothing, and is not executed."""

    query: str
    needs: tuple[str, ...]


CHECKS: Final = (
    Check(ORDER, ("along",)),
    Check(MARKERS, ("markers",)),
    Check(FENCED, ("first_fences",)),
    Check(UNGRANTED, ("markers", "fence_records")),
    Check(TAILS, ("markers", "first_fences")),
    Check(EPOCHS, ("fence_records",)),
    Check(FORGOTTEN, ("fence_records",)),
    Check(LEDGERS, ("fence_records",)),
    Check(RESUMES, ("resumes", "first_fences")),
    Check(CHOICES, ("choices",)),
    Check(STATES, ("remembered",)),
    Check(HORIZON, ("remembered", "along")),
    Check(WRITERS, ("writers", "held")),
    Check(WRONGS, ("wrongs", "held")),
    Check(SEQUENCES, ("writers", "held")),
    Check(PUBLISHES, ("publishes",)),
    Check(UNREMEMBERED, ("publishes", "remembered")),
    Check(PUBLISHERS, ("publishers",)),
    Check(PASSED_ON, ("recorded",)),
    Check(KEPT_ROWS, ("kept",)),
)


_PLACE: Final = ("log", "ordinal", "ledger", "first", "last")
_SIZES: Final = ("entries", "messages", "bytes")
_NUMBERS: Final = ("sequence", "chunk", "published_ms", "uuid")
_WRITER: Final = ("producer", *_NUMBERS, *(f"last_{name}" for name in _NUMBERS))

_OF_FACTS: Final = {
    "along": ((facts.RUN, facts.MARKER, facts.CUT), ("kind", *_PLACE, *_SIZES)),
    "markers": (
        (facts.MARKER,),
        (*_PLACE, "epoch", "producer", "subject", "owner", "time_ms"),
    ),
    "writers": ((facts.WRITER,), (*_PLACE, *_WRITER)),
    "wrongs": ((facts.FALL, facts.TORN), ("kind", *_PLACE, *_WRITER)),
    "publishes": ((facts.PUBLISH,), (*_PLACE, "producer", "sequence", "last_sequence")),
    "publishers": ((facts.PUBLISHER,), (*_PLACE, "producer", "uuid", "subject", "pod_uid")),
    "kept": ((facts.KEPT,), (*_PLACE, "chunk", "last_chunk")),
}
"""For each table, its kinds of facts and its columns."""

_OF_RECORDS: Final = {
    "fence_records": "fenced",
    "resumes": "resumed",
    "losses": "loss",
    "forgets": "forget",
    "recorded": "publisher",
    "ready": "ready",
}
"""For each table, its kind of audit records."""

NAMES: Final = (*_OF_FACTS, *_OF_RECORDS, "first_fences", "choices", "held", "logs", "remembered")
"""The names of all tables. ``first_fences``: the first record of each ledger; ``choices``: fences that chose
between two waiters; ``held``: markers of ledgers with a single holder; ``remembered``: logs whose state in the
store is known.
"""


def tables_of(observed: pa.Table, records: pa.Table, logs: pa.Table) -> dict[str, pa.Table]:
    """All tables, from facts (``facts.FACTS``), audit records (``records.RECORDS``) and logs (``LOGS``).

    Arrow filters them, not SQL, because Spark plans smaller queries faster, and planning dominates most audits.
    """
    found = {
        name: observed.filter(pc.is_in(observed["kind"], pa.array(kinds))).select(list(columns))
        for name, (kinds, columns) in _OF_FACTS.items()
    }
    found |= {
        name: records.filter(pc.equal(records["kind"], kind)) for name, kind in _OF_RECORDS.items()
    }
    fenced, markers = found["fence_records"], found["markers"]
    is_choice = pc.and_(pc.is_valid(fenced["promoted"]), pc.is_valid(fenced["waiting"]))
    is_held = pc.and_(pc.is_valid(markers["epoch"]), pc.is_valid(markers["producer"]))
    return found | {
        "first_fences": _first_of_each(fenced, ["log", "ledger"]),
        "choices": fenced.filter(is_choice),
        "held": markers.filter(is_held),
        "logs": logs,
        "remembered": logs.filter(pc.is_valid(logs["state_ledger"])),
    }


def _first_of_each(table: pa.Table, keys: list[str]) -> pa.Table:
    """The first row for each combination of keys."""
    numbered = table.select(keys).append_column("row", pa.array(np.arange(len(table))))
    first = numbered.group_by(keys).aggregate([("row", "min")])
    return table.take(first["row_min"].sort())
