"""The table of rights in docs/security.md says what ``may`` decides, in every situation."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onewriter_core.api import ExclusiveTopic, ProducerClaim
from onewriter_core.authorization import (
    INSTALLATION,
    Action,
    ConsumersDefault,
    EpochResource,
    Granted,
    NamespaceResource,
    OwnedResource,
    Policy,
    Principal,
    Proof,
    Resource,
    Role,
    TopicResource,
    UndeclaredTopics,
    may,
)
from onewriter_core.ids import Identity, TopicName

DOCUMENT = Path(__file__).parents[3] / "docs" / "security.md"
NAME = TopicName.parse("persistent://shop/default/orders")
NO = "\N{EN DASH}"
NAMED, CLAIMED, SOMEBODY = "named", "claimed", "somebody"

PRINCIPALS = {
    "administrator": Principal(Identity("root"), frozenset({Role.ADMINISTRATOR})),
    "observer": Principal(Identity("prometheus"), frozenset({Role.OBSERVER})),
    "pipeline": Principal(Identity("offload"), frozenset({Role.PIPELINE})),
    "ServiceAccount of the topic's namespace": Principal(
        Identity("system:serviceaccount:shop:web")
    ),
    "named by `access.consumers`": Principal(Identity(NAMED)),
    "subject of a claim": Principal(Identity(CLAIMED)),
    "others": Principal(Identity("system:serviceaccount:rival:web")),
}

CONSUMERS: list[dict[str, Any] | None] = [
    None,
    {"everyone": True},
    {"subjects": [NAMED]},
    {"namespaces": ["elsewhere"]},
]


@dataclass(frozen=True)
class Situation:
    """What the topic and the installation say, and who has what the request is about."""

    is_open: bool
    requires_claim: bool
    consumers: int
    may_reset: bool
    has_it: str | None
    proof: Proof

    @property
    def named(self) -> dict[str, Any] | None:
        return CONSUMERS[self.consumers]

    @property
    def names_it(self) -> bool:
        return NAMED in (self.named or {}).get("subjects", ())

    @property
    def policy(self) -> Policy:
        default = ConsumersDefault.EVERYONE if self.is_open else ConsumersDefault.NAMESPACE
        return Policy(default, UndeclaredTopics(namespaces={NAME.namespace_name}))

    @property
    def topic(self) -> TopicResource:
        access: dict[str, Any] = {"requireClaim": self.requires_claim}
        if self.named is not None:
            access["consumers"] = self.named
        declared = ExclusiveTopic.from_document(
            {"metadata": {"name": "orders", "namespace": "shop"}, "spec": {"access": access}}
        )
        claim = ProducerClaim.from_document(
            {
                "metadata": {"name": "writer", "namespace": "shop"},
                "spec": {
                    "topicRef": {"name": "orders"},
                    "subject": {"tokenSubject": CLAIMED},
                    "allow": ["lead", *(["resetOwnership"] if self.may_reset else [])],
                },
            }
        )
        return TopicResource(NAME, declared, (claim,), policy=self.policy)

    @property
    def reads(self) -> bool:
        """Whether everyone reads the topic."""
        return self.is_open if self.named is None else bool(self.named.get("everyone"))

    @property
    def is_default(self) -> bool:
        return self.named is None or bool(self.named.get("everyone"))

    @property
    def writes(self) -> bool:
        """Whether everyone writes to the topic where no claim is required."""
        return self.is_open or bool(self.named and self.named.get("everyone"))


SITUATIONS = [
    Situation(*each, None, Proof.NONE)
    for each in itertools.product(
        [False, True], [False, True], range(len(CONSUMERS)), [False, True]
    )
] + [
    Situation(True, True, 0, False, *each)
    for each in itertools.product(
        [SOMEBODY, *(principal.identity.subject for principal in PRINCIPALS.values())],
        [Proof.NONE, Proof.INVALID, Proof.REGISTRATION, Proof.CAPABILITY],
    )
]

RESOURCES: dict[str, Callable[[Situation], Resource]] = {
    "": lambda each: each.topic,
    "a topic": lambda each: each.topic,
    "a namespace": lambda each: NamespaceResource(NAME.namespace_name, each.policy),
    "metrics, all topics, desired state": lambda _: INSTALLATION,
    "a resource by name": lambda each: OwnedResource("lock", "", each.has_it),
    "undeclared, where that is allowed": lambda each: TopicResource(NAME, policy=each.policy),
}

EPOCH_ACTIONS = {Action.PUBLISH_UNDER_EPOCH, Action.STAGE}


def resource_of(action: Action, about: str, situation: Situation) -> Resource:
    if action in EPOCH_ACTIONS:
        holder = Identity(situation.has_it or SOMEBODY)
        return EpochResource(NAME, "app", 7, holder, situation.proof)
    return RESOURCES[about](situation)


@dataclass(frozen=True)
class Row:
    actions: tuple[Action, ...]
    about: str
    cells: dict[str, str]

    def expects(self, column: str, situation: Situation) -> bool:
        return self._says(self._text(column), column, situation)

    def _text(self, column: str) -> str:
        text = self.cells[column]
        if text == "the same":
            return next(iter(self.cells.values()))
        return self.cells["others"] if text == "as others" else text

    def _says(self, text: str, column: str, situation: Situation) -> bool:
        if text.startswith("if it may "):
            request = text.removeprefix("if it may ")
            results = [ROWS_OF[Action(word)].expects(column, situation) for word in words(request)]
            return any(results) if " or " in request else all(results)
        subject = PRINCIPALS[column].identity.subject
        is_proved = situation.proof is Proof.CAPABILITY or (
            situation.proof is Proof.REGISTRATION and situation.has_it == subject
        )
        return {
            "yes": True,
            NO: False,
            # a topic that does not name it says nothing of that column
            "default": situation.is_default,
            "if `everyone`": situation.reads,
            "if no claim is required": not situation.requires_claim,
            "if no claim is required and the topic is open": (
                not situation.requires_claim and situation.writes
            ),
            "as its claim says": True,
            "with a proof": is_proved,
            "with a proof, or as the holder's subject": is_proved or situation.has_it == subject,
            "if the installation is open": situation.is_open,
            "if no other subject has it": situation.has_it in {None, subject},
            "if its claim has `allow: [resetOwnership]`": situation.may_reset,
        }[text]


def words(text: str) -> list[str]:
    return re.split(" or | and ", text)


def rows() -> Iterator[Row]:
    lines = iter(DOCUMENT.read_text().splitlines())
    heads = next(cells(line) for line in lines if line.startswith("| right | administrator |"))
    next(lines)
    for line in itertools.takewhile(lambda line: line.startswith("|"), lines):
        first, *rest = cells(line)
        about = re.search(r"\((.*)\)$", first)
        actions = tuple(Action(name) for name in re.findall("`([a-z_]+)`", first))
        yield Row(
            actions,
            "" if about is None else about[1],
            dict(zip(heads[1:], rest, strict=True)),
        )


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


ROWS = list(rows())
ROWS_OF = {action: row for row in reversed(ROWS) for action in row.actions}


@pytest.mark.parametrize(
    ("row", "action"),
    [(row, action) for row in ROWS for action in row.actions],
    ids=[f"{action} {row.about}".strip() for row in ROWS for action in row.actions],
)
@pytest.mark.parametrize("column", PRINCIPALS)
def test_the_function_decides_as_the_table_states(row: Row, action: Action, column: str) -> None:
    principal = PRINCIPALS[column]
    for situation in SITUATIONS:
        if column.startswith("named") and not (situation.names_it or situation.reads):
            continue  # the topic does not name it
        decision = may(principal, action, resource_of(action, row.about, situation))
        is_granted = isinstance(decision, Granted)
        assert is_granted is row.expects(column, situation), (situation, decision)


def test_the_table_names_every_principal_and_every_right() -> None:
    assert list(ROWS[0].cells) == list(PRINCIPALS)
    assert {action for row in ROWS for action in row.actions} == set(Action)
