"""The history of writers, out of markers, runs and the audit: who led when, who wrote how much."""

from __future__ import annotations

from typing import Final

TIMELINE: Final = """
    SELECT f.log AS topic, f.ledger AS epoch, f.producer, f.subject, f.host, f.cause, f.time_ms AS since_ms,
        lead(f.time_ms) OVER (PARTITION BY f.log ORDER BY f.ordinal) AS until_ms,
        lead(f.cause) OVER (PARTITION BY f.log ORDER BY f.ordinal) AS ended_by,
        coalesce(f.leaderless_ms, r.leaderless_ms) AS leaderless_ms,
        if(f.producer = '', 'nobody', 'one') AS held_by, f.broker
    FROM fences f
    LEFT JOIN (
        SELECT topic, ledger, max(leaderless_ms) AS leaderless_ms FROM records
        WHERE kind = 'ready' GROUP BY topic, ledger
    ) r ON r.topic = f.topic AND r.ledger = f.ledger
    WHERE f.changes_hands
    ORDER BY topic, epoch"""
"""Tenures: from a grant, or a fence behind which nobody holds the topic, to the next."""

LOAD: Final = """
    SELECT m.log AS topic, coalesce(m.producer, '(shared)') AS producer, m.epoch, m.ledger,
        sum(r.entries) AS entries, sum(r.messages) AS messages, sum(r.bytes) AS bytes,
        min(r.time_ms) AS first_ms, max(r.newest_ms) AS last_ms
    FROM facts r LEFT JOIN markers m ON m.log = r.log AND m.ledger = r.ledger
    WHERE r.kind = 'run' AND m.log IS NOT NULL
    GROUP BY m.log, m.producer, m.epoch, m.ledger
    ORDER BY topic, m.ledger"""
"""What was written, ledger by ledger."""

LEADERLESS: Final = """
    SELECT cause, count(*) AS windows, percentile(leaderless_ms, 0.5) AS p50_ms,
        percentile(leaderless_ms, 0.99) AS p99_ms, max(leaderless_ms) AS max_ms
    FROM timeline WHERE leaderless_ms IS NOT NULL GROUP BY cause ORDER BY cause"""
"""Windows without a writer, by why the one before no longer wrote. Over the view ``timeline``."""

HOLDERS: Final = """
    SELECT producer, count(DISTINCT topic) AS topics, count(DISTINCT topic, epoch) AS epochs,
        sum(entries) AS entries, sum(messages) AS messages, sum(bytes) AS bytes
    FROM load GROUP BY producer ORDER BY bytes DESC, producer"""
"""What each holder wrote. Over the view ``load``."""

EXTENT: Final = """
    SELECT l.log AS topic,
        min_by(concat(f.ledger, '-', f.first), f.ordinal) AS first,
        max_by(concat(f.ledger, '-', f.last), f.ordinal) AS last,
        count(DISTINCT f.ledger) AS ledgers, sum(f.entries) AS entries, sum(f.messages) AS messages
    FROM logs l LEFT JOIN facts f ON f.log = l.log AND f.kind IN ('run', 'marker')
    GROUP BY l.log ORDER BY topic"""
"""What was looked at."""
