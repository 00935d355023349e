"""The model of a bucket on a Valkey Cluster: it holds, and the search finds each naive form wrong.

The scopes of ``SMALLEST`` are those in which every naive form is found and every ``sometimes`` property occurs. The marker
``full`` adds larger scopes, and ``ONEWRITER_MODEL=large`` those that take minutes (`make model`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from tests.model.cluster_properties import (
    BY_GENERATION,
    BY_NOTE,
    EMPTIED,
    LOSES,
    OWNER_CONTINUES,
    PAUSED,
    REPORTED,
    RETURNED,
    SETTLED,
    TAKEOVER,
    ZOMBIE,
    ClusterSometimes,
    always,
    steps,
)
from tests.model.cluster_protocol import PROTOCOL, Action, ClusterProtocol, Rules, Scope, State
from tests.model.explorer import Report, explore

pytestmark = pytest.mark.timeout(600)  # seconds of computation, more on a busy machine

LARGE = os.environ.get("ONEWRITER_MODEL") == "large"
STATES_MAX = 20_000_000 if LARGE else 2_000_000

LOCAL = Scope("Local", promotions=2)
"""Two promotions, each of a replica that lags."""

LOST_VOLUME = Scope("Replicated", volumes=1, entries=1)
"""A promotion and the loss of a primary's volume, with one replica."""

RESTARTS = Scope("Replicated", promotions=1, restarts=1, entries=1)
"""A promotion and a restart with the data, of any primary, also of a deposed one."""

LATE_NOTES = Scope("Local", promotions=1, restarts=1, entries=1, late_notes=True)
"""A promotion and a restart, and brokers that note what they registered long ago."""

IN_SYNC = Scope("Replicated", promotions=2, restarts=1, entries=1, replicas_return=True)
"""As above, and replicas are in sync within the time for which a registration waits for them."""

MOVED = Scope("Local", shards=2, moves=2, entries=1)
"""The bucket's hash slot moves away and back, with a promotion."""

TWO_REPLICAS = Scope("Replicated", replicas=2, versions=2, entries=1)
"""One of two replicas has acknowledged."""

ALL_REPLICAS = Scope("AllReplicas", replicas=2, versions=2, entries=1)
"""Both replicas have acknowledged."""

REPLACED = Scope("AllReplicas", replicas=1, replaced=1, versions=2, entries=1)
"""A replica that was replaced, and that the cluster still knows."""

SMALLEST: dict[str, tuple[Scope, list[ClusterSometimes]]] = {
    "local": (LOCAL, [OWNER_CONTINUES, TAKEOVER, ZOMBIE, LOSES, REPORTED, SETTLED, PAUSED]),
    "lost volume": (LOST_VOLUME, [EMPTIED, TAKEOVER, PAUSED]),
    "restarts": (RESTARTS, [BY_GENERATION, BY_NOTE, ZOMBIE]),
    "late notes": (LATE_NOTES, [BY_NOTE, ZOMBIE]),
    "in sync": (IN_SYNC, [BY_GENERATION, OWNER_CONTINUES]),
    "moved": (MOVED, [BY_GENERATION, RETURNED]),
    "two replicas": (TWO_REPLICAS, [LOSES, REPORTED]),
    "all replicas": (ALL_REPLICAS, [TAKEOVER]),
    "replaced replica": (REPLACED, [TAKEOVER]),
}

ClusterReport = Report[State, Action]


def examine(rules: Rules, scope: Scope, seen: Sequence[ClusterSometimes] = ()) -> ClusterReport:
    model = ClusterProtocol(rules, scope)
    return explore(
        model,
        always=always(model),
        steps=steps(model),
        sometimes=seen,
        states_max=STATES_MAX,
    )


def broken(report: ClusterReport) -> tuple[str, list[str]]:
    """Return the first word of the property that the search found broken, and the actions that led there."""
    assert report.violation is not None, f"nothing found: {report}"
    kinds = [action.kind for action in report.violation.actions]
    return report.violation.broken.split(":")[0], kinds


# ---- The protocol holds ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALLEST)
def test_the_protocol_holds_in_the_smallest_scopes(name: str) -> None:
    scope, seen = SMALLEST[name]
    examine(PROTOCOL, scope, seen).assert_sound()


@pytest.mark.full  # the scopes above, in more directions
@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(Scope("Local", promotions=2, restarts=1), id="restarts and two promotions"),
        pytest.param(
            Scope("Replicated", promotions=2, volumes=2, restarts=1, entries=1), id="lost volumes"
        ),
        pytest.param(Scope("AllReplicas", replicas=2, promotions=2, entries=1), id="two replicas"),
    ],
)
def test_the_protocol_holds_in_other_scopes(scope: Scope) -> None:
    examine(PROTOCOL, scope).assert_sound()


@pytest.mark.skipif(not LARGE, reason="minutes and gigabytes; ONEWRITER_MODEL=large runs it")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(
            Scope("Replicated", shards=2, moves=2, entries=1, versions=4),
            id="four owners and moves",
        ),
        pytest.param(
            Scope("AllReplicas", replicas=2, promotions=2, volumes=1, entries=1),
            id="two replicas, two promotions and a lost volume",
        ),
        pytest.param(
            Scope("Replicated", replicas=2, promotions=2, restarts=1, entries=1, versions=2),
            id="two replicas and a restart",
        ),
        pytest.param(
            Scope(
                "Replicated", promotions=2, restarts=2, volumes=1, entries=1, replicas_return=True
            ),
            id="replicas in sync",
        ),
        pytest.param(
            Scope("Replicated", shards=2, moves=3, restarts=1, entries=1), id="moves and a restart"
        ),
    ],
)
def test_the_protocol_holds_in_larger_scopes(scope: Scope) -> None:
    examine(PROTOCOL, scope).assert_sound()


def test_with_two_replicas_a_confirmation_by_all_of_them_loses_nothing() -> None:
    report = examine(PROTOCOL, ALL_REPLICAS, [LOSES])
    assert report.violation is None
    assert report.unreached == (LOSES.name,)


# ---- Naive forms are found wrong ------------------------------------------------------------------


def test_a_former_primary_that_is_trusted_brings_a_dead_branch_back() -> None:
    """The dataset was registered before, so the broker takes it for one of its own."""
    found, kinds = broken(examine(Rules(past_needs_proof=False), LOCAL))
    assert found == "fenced"
    assert kinds.count("acquire") == 2
    assert "promote" in kinds


def test_a_dataset_that_is_adopted_without_proof_holds_stale_entries() -> None:
    """A deposed primary restarts under a new replid, with entries of the owner that was deposed."""
    found, kinds = broken(examine(Rules(needs_proof=False), RESTARTS))
    assert found == "fenced"
    assert {"append", "restart"} <= set(kinds)
    assert kinds[-1] == "acquire"


def test_an_empty_process_that_serves_as_the_primary_loses_what_replicas_have_confirmed() -> None:
    found, kinds = broken(examine(Rules(empty_leaves=False), LOST_VOLUME))
    assert found == "kept"
    assert kinds[-2:] == ["wait", "volume"]


def test_a_wait_on_another_connection_acknowledges_what_no_replica_has() -> None:
    found, kinds = broken(examine(Rules(wait_on_writer=False), LOST_VOLUME))
    assert found == "kept"
    assert kinds == ["append", "wait", "promote"]


def test_a_replica_that_was_replaced_but_not_forgotten_may_be_promoted() -> None:
    found, kinds = broken(examine(Rules(counts_known=False), REPLACED))
    assert found == "kept"
    assert kinds == ["append", "wait", "promote"]


def test_a_restarted_primary_that_is_registered_before_its_replica_has_it_may_be_its_last_copy() -> (
    None
):
    """The replica is promoted with the generation before that registration, and is refused."""
    found, kinds = broken(examine(Rules(replicas_first=False), IN_SYNC))
    assert found == "survives"
    assert "copy" not in kinds
    assert kinds[-1] == "promote"


def test_a_registered_identity_that_is_not_noted_is_lost_when_the_first_replica_connects() -> None:
    """The broker registers the replid that it saw, the replica connects, and the stamp is refused."""
    found, kinds = broken(examine(Rules(identity_noted=False), RESTARTS))
    assert found == "recognised"
    assert kinds == ["restart", "acquire", "copy"]


def test_a_late_note_that_does_not_name_its_dataset_brings_a_dead_branch_back() -> None:
    """A deposed primary restarts with stale entries, and a note makes it the registered dataset."""
    model = ClusterProtocol(Rules(identity_checked=False), LATE_NOTES)
    found, kinds = broken(explore(model, always=always(model), states_max=STATES_MAX))
    assert found == "fenced"
    assert {"append", "identity", "restart"} <= set(kinds)


def test_a_report_after_the_first_append_may_be_lost_without_it() -> None:
    found, _ = broken(examine(Rules(reports_first=False), LOCAL))
    assert found == "never silent"


def test_a_report_that_is_not_repeated_is_lost_with_the_next_promotion() -> None:
    found, kinds = broken(examine(Rules(reports_again=False), LOCAL))
    assert found == "never silent"
    assert kinds.count("promote") == 2
    assert "report" in kinds


def test_a_range_at_risk_after_the_last_marker_does_not_cover_the_entries_before_it() -> None:
    found, kinds = broken(examine(Rules(range_after_entry=False), LOCAL))
    assert found == "never silent"
    assert kinds[-1] == "report"


def test_a_log_that_is_noted_as_settled_before_its_reports_loses_them_silently() -> None:
    """The next broker states no range, although its predecessor died before it wrote the report."""
    found, kinds = broken(examine(Rules(note_after_reports=False), LOCAL))
    assert found == "never silent"
    assert "note" in kinds
    assert "report" not in kinds


def test_a_note_of_an_earlier_registration_hides_what_a_later_promotion_lost() -> None:
    found, kinds = broken(examine(Rules(note_is_dated=False), LOCAL))
    assert found == "never silent"
    assert "note" in kinds
    assert kinds.count("promote") == 2


# ---- The trace of the model -----------------------------------------------------------------------


def test_every_kind_of_action_has_its_line() -> None:
    scope = Scope("Replicated", shards=2, moves=1, restarts=1, volumes=1, late_notes=True)
    model, lines = ClusterProtocol(PROTOCOL, scope), dict[str, str]()
    level = list(model.initial())
    for _ in range(6):
        following: dict[State, None] = {}
        for state in level:
            for action, after in model.successors(state):
                lines[action.kind] = str(action)
                following[after] = None
        level = list(following)[:400]
    assert set(lines) == {
        "acquire", "open", "report", "note", "append", "wait", "promote", "restart", "volume", "move", "copy", "identity",
    }  # fmt: skip
