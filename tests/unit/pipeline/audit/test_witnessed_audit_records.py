"""The brokers witness audit records that were copied, so a table cannot lose or change them unnoticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.falsified_tables.lab import CURRENT, ORDERS, Brokers, Lab, Stage, offloaded

from onewriter_core.witnesses import AuditChain, Witness, WitnessPost
from onewriter_pipeline.errors import Contradicted
from onewriter_pipeline.jobs.offload_audit import copied_audit
from onewriter_pipeline.tables.layout import AUDIT, MESSAGES
from onewriter_pipeline.tables.witnesses import CopiedAudit, WitnessWriter


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Tables without a falsification."""
    return offloaded(tmp_path / "lab")


def writer_of(lab: Lab, brokers: Brokers | None = None) -> WitnessWriter:
    """The witnesses at the beginning of an offload."""
    messages = lab.tables.existing(MESSAGES)
    brokers = lab.brokers if brokers is None else brokers
    found = WitnessWriter(brokers, lab.tables, messages)
    for log in CURRENT:
        found.begin(brokers.segments(log), messages.state())
    return found


def record(number: int) -> CopiedAudit:
    return f"{number}-0", json.dumps({"id": f"{number}-0", "kind": "grant", "topic": ORDERS})


def test_offload_adds_new_records_once(lab: Lab) -> None:
    copied = copied_audit(lab.tables, CURRENT)
    before = lab.brokers.witnesses[ORDERS].audit
    assert (before.count, before.last) == (len(copied[ORDERS]), copied[ORDERS][-1][0])
    copied[ORDERS] += [record(number) for number in range(100, 1200)]
    for _ in range(2):
        writer_of(lab).add_audit(copied)
        after = lab.brokers.witnesses[ORDERS].audit
        assert (after.count, after.last) == (before.count + 1100, "1199-0")


@pytest.mark.parametrize(
    "copied",
    [[record(100)], [record(5), record(7), record(100)], []],
    ids=["others", "more", "none"],
)
def test_offload_refuses_a_table_that_lost_witnessed_records(
    lab: Lab, copied: list[CopiedAudit]
) -> None:
    before = dict(lab.brokers.witnesses)
    with pytest.raises(Contradicted, match="audit records up to 8-0 were copied"):
        writer_of(lab).add_audit({ORDERS: copied})
    assert lab.brokers.witnesses[ORDERS] == before[ORDERS]


def test_brokers_of_an_earlier_release_do_not_stop_an_offload(lab: Lab) -> None:
    class Earlier(Brokers):
        def add_to_witness(self, log: str, post: WitnessPost) -> Witness:
            found = super().add_to_witness(log, replace(post, audit=()))
            return replace(found, audit=AuditChain())

    brokers = Earlier()
    brokers.witnesses = {
        log: replace(each, audit=AuditChain()) for log, each in lab.brokers.witnesses.items()
    }
    found = writer_of(lab, brokers)
    found.add_audit(copied_audit(lab.tables, CURRENT))
    assert found.notes == []
    assert brokers.witnesses[ORDERS].audit == AuditChain()


def removed(lab: Lab) -> None:
    lab.remove_newest(AUDIT)


def renamed(lab: Lab) -> None:
    def change(record: dict[str, Any]) -> dict[str, Any]:
        return record | {"leaderlessMs": 1}

    lab.edit_audit(change)


def thinned(lab: Lab) -> None:
    lab.edit_audit(lambda record: None if record["ledger"] == 5 else record)


@pytest.mark.parametrize("falsify", [removed, renamed, thinned])
@pytest.mark.parametrize("stage", [Stage.WHOLE, Stage.TRIMMED, Stage.CUT])
def test_verify_finds_changed_records_without_the_brokers_audit(
    lab: Lab, falsify: Any, stage: Stage
) -> None:
    falsify(lab)
    found = [each for each in lab.findings(stage) if each.predicate == "S4"]
    assert any("were copied" in each.sentence for each in found)
