"""Bugs in the pipeline: batches that are written, tables that are verified, logs that are read."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

UNIT = "tests/unit/pipeline"

MUTANTS = (
    Mutant(
        "a-damaged-table-is-taken-for-the-log",
        ("S7",),
        "onewriter_pipeline.tables.verification:_unlike",
        "Files whose contents changed pass the check before a trim.",
        "elif shown(digest) != noted.digest:",
        "elif False:",
        (UNIT,),
    ),
    Mutant(
        "missing-rows-pass-the-check",
        ("S7",),
        "onewriter_pipeline.tables.verification:_unlike",
        "Files that lack rows pass the check before a trim.",
        "if rows != noted.rows:",
        "if rows > noted.rows:",
        (UNIT,),
    ),
    Mutant(
        "another-log-passes-the-check",
        ("S7",),
        "onewriter_pipeline.tables.verification:differences",
        "The hash of the log is not compared before a trim.",
        'compare("hashes", segment.chain or "", _chain(rows, last + 1))',
        "pass",
        (UNIT,),
    ),
    Mutant(
        "an-entry-is-counted-twice",
        ("S7",),
        "onewriter_pipeline.tables.verification:_offloaded",
        "Entries that were offloaded twice count twice, and hide missing ones.",
        "low, high = max(begin, at), min(behind, end)",
        "low, high = max(begin, first), min(behind, end)",
        (UNIT,),
    ),
    Mutant(
        "a-batch-of-the-sink-has-another-version",
        ("S15",),
        "onewriter_pipeline.publish.transfer:_publish_one",
        "A batch that is written again is published under another version.",
        "with Staging(access, log, app, version, grant) as staging:\n            return staging.publish(",
        "with Staging(access, log, app, version + secrets.randbelow(9) + 1, grant) as staging:\n            return staging.publish(",
        (UNIT, "tests/integration/test_sink_attempts.py", "tests/spark/test_spark_sink.py"),
    ),
    Mutant(
        "the-audit-ignores-who-published",
        ("S15",),
        "onewriter_core.audit.blocks:BlockObserver._publish",
        "The pipeline's audit does not look at whom blocks name as their publisher.",
        "if head.by is not None and named != self._named:",
        "if False:",
        ("tests/unit/pipeline/audit",),
    ),
    Mutant(
        "a-superseded-driver-goes-on",
        ("S15",),
        "onewriter_pipeline.lead.topics:Topics.begin",
        "A driver that lost its topic between two batches begins the next one as if nothing had happened.",
        "if use.lost:",
        "if False:",
        (UNIT, "tests/integration/test_sink_attempts.py"),
    ),
    Mutant(
        "a-batch-is-published-before-all-logs-agree",
        ("S15",),
        "onewriter_pipeline.publish.transfer:publish",
        "Some logs get their rows although another refuses its part.",
        "_ask_all(target, app, version, sorted(parts))",
        "pass",
        (UNIT, "tests/integration/test_sink_refusals.py", "tests/integration/test_sink_routing.py"),
    ),
)
