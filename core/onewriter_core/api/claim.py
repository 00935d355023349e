"""``ProducerClaim``: who may write to a topic, in which modes and with which queue priority."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from onewriter_core.api.common import (
    API_VERSION,
    INT32_MAX,
    INT32_MIN,
    IS_A_SET,
    MODE_WORDS,
    PRINTABLE,
    AccessModeWord,
    ApiModel,
    ListOf,
    Resource,
    ResourceName,
    WordOf,
    rule,
    rules,
)
from onewriter_core.topic.model import AccessMode

LabelName = Annotated[str, Field(max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]

Priority = Annotated[int, Field(ge=INT32_MIN, le=INT32_MAX)]


class Permission(StrEnum):
    """What a claim allows. ``lead``: hold the topic. ``takeover``: also fence its holder.

    ``resetOwnership``: own the topic, or a partition, with generation 0, replacing any owner.
    """

    LEAD = "lead"
    TAKEOVER = "takeover"
    RESET_OWNERSHIP = "resetOwnership"


_NEEDED: Final[Mapping[AccessMode | None, Permission]] = {
    AccessMode.EXCLUSIVE: Permission.LEAD,
    AccessMode.WAIT_FOR_EXCLUSIVE: Permission.LEAD,
    AccessMode.EXCLUSIVE_WITH_FENCING: Permission.TAKEOVER,
}
"""The permission that each access mode needs; Shared needs none."""


class TopicReference(ApiModel):
    """The ExclusiveTopic that a claim is for, in the claim's own namespace."""

    name: ResourceName
    """The object's name."""


class LabelSelector(ApiModel):
    """Pods by their labels; all must match."""

    match_labels: Annotated[
        dict[LabelName, LabelValue],
        Field(
            min_length=1,
            max_length=64,
            # Only here: a claim that an earlier release accepted matches no pod, as before.
            json_schema_extra=rules(
                rule(
                    "self.all(name, !format.qualifiedName().validate(name).hasValue())",
                    "no pod can have such a label: a name is [PREFIX/]NAME, of letters, digits, '-', '_' and"
                    " '.', and begins and ends with a letter or digit",
                ),
                rule(
                    "self.all(name, !format.labelValue().validate(self[name]).hasValue())",
                    "no pod can have such a label: a value has at most 63 letters, digits, '-', '_' and '.',"
                    " and begins and ends with a letter or digit",
                ),
            ),
        ),
    ]
    """Labels that a pod must have."""


class ClaimSubject(ApiModel):
    """Who the claim is for. Everything given must hold."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.tokenSubject) || has(self.serviceAccountName) || has(self.podSelector)",
                "must have one of serviceAccountName, podSelector, tokenSubject",
                reason="FieldValueRequired",
            ),
            rule(
                "!has(self.tokenSubject) || !(has(self.serviceAccountName) || has(self.podSelector))",
                "tokenSubject cannot be combined with other fields:"
                " create a second claim for the other subject",
                field=".tokenSubject",
            ),
        )
    )

    service_account_name: ResourceName | None = None
    """A ServiceAccount of the claim's namespace. Brokers that do not use TokenReview also accept a token whose
    subject is the name alone."""
    pod_selector: LabelSelector | None = None
    """Restricts the claim to some pods of its namespace; only in Kubernetes."""
    token_subject: Annotated[str, Field(pattern=PRINTABLE, max_length=253)] | None = None
    """The exact subject of a static token; excludes the other fields."""

    @model_validator(mode="after")
    def _names_a_subject(self) -> Self:
        in_kubernetes = self.service_account_name is not None or self.pod_selector is not None
        if not in_kubernetes and self.token_subject is None:
            raise ValueError("must have one of serviceAccountName, podSelector, tokenSubject")
        if in_kubernetes and self.token_subject is not None:
            raise ValueError(
                "tokenSubject cannot be combined with other fields: create a second claim for the other subject"
            )
        return self


class ProducerClaimSpec(ApiModel):
    """Who may do what with the topic."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!(has(self.priority) && has(self.defaultPriority)"
                " && self.defaultPriority > self.priority)",
                "defaultPriority exceeds priority, which is its maximum",
                field=".defaultPriority",
            ),
            rule(
                "!has(self.mode) || self.mode == 'Shared'"
                " || (self.mode == 'ExclusiveWithFencing' ? 'takeover' : 'lead') in self.allow",
                "allow lacks the permission for mode: takeover for ExclusiveWithFencing, lead for other modes",
                field=".mode",
            ),
            # Only here: a claim that an earlier release accepted still allows Shared producers.
            rule(
                "!has(self.allow) || size(self.allow) > 0 || (has(self.mode) && self.mode == 'Shared')",
                "an empty allow permits Shared producers only: write mode: Shared, or name a permission",
                field=".allow",
            ),
        )
    )

    topic_ref: Annotated[
        TopicReference,
        Field(
            json_schema_extra=rules(
                rule(
                    "self == oldSelf",
                    "the topic of a ProducerClaim cannot change: create another claim",
                    reason="FieldValueForbidden",
                )
            )
        ),
    ]
    """The ExclusiveTopic of the claim. Immutable."""
    subject: ClaimSubject
    """Subject of the claim; many pods under one claim are normal."""
    mode: AccessModeWord | None = None
    """The only allowed access mode; unset: all modes of the topic. For a takeover
    (ExclusiveWithFencing) only ``allow`` decides."""
    priority: Priority | None = None
    """The highest queue priority that a producer may request (PIP-440)."""
    default_priority: Priority | None = None
    """The queue priority of a producer that requests none; default 0."""
    allow: Annotated[
        ListOf[WordOf[Permission]],
        Field(
            max_length=3,
            json_schema_extra=IS_A_SET
            | rules(
                rule(
                    "!('takeover' in self) || 'lead' in self",
                    "takeover also needs lead: write allow: [lead, takeover]",
                )
            ),
        ),
    ] = (Permission.LEAD,)
    """lead: may hold the topic. takeover: may also fence its holder (ExclusiveWithFencing). resetOwnership: may
    own it with generation 0, replacing any owner."""

    @field_validator("allow")
    @classmethod
    def _takeover_includes_lead(cls, allow: tuple[Permission, ...]) -> tuple[Permission, ...]:
        if len(set(allow)) != len(allow):
            raise ValueError("must not name a permission twice")
        if Permission.TAKEOVER in allow and Permission.LEAD not in allow:
            raise ValueError("takeover also needs lead: write allow: [lead, takeover]")
        return allow

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        cap, default = self.priority, self.default_priority
        if cap is not None and default is not None and default > cap:
            raise ValueError(
                f"defaultPriority {default} exceeds priority {cap}, which is its maximum"
            )
        needed = _NEEDED.get(self.mode)
        if self.mode is not None and needed is not None and needed not in self.allow:
            raise ValueError(f"mode {MODE_WORDS[self.mode]} needs {needed} in allow")
        return self

    def refuses_mode(self, mode: AccessMode) -> str | None:
        """Why this claim does not permit the access mode; None: it does."""
        is_takeover = mode is AccessMode.EXCLUSIVE_WITH_FENCING
        if self.mode is not None and mode is not self.mode and not is_takeover:
            return f"allows mode {MODE_WORDS[self.mode]} only"
        needed = _NEEDED.get(mode)
        if needed is not None and needed not in self.allow:
            return f"does not allow to {'take over' if is_takeover else 'lead'}"
        return None

    def priority_in_effect(self, requested: int | None) -> int:
        """The requested priority, else the claim's default, else 0; at most the claim's maximum."""
        wanted = requested if requested is not None else self.default_priority or 0
        return wanted if self.priority is None else min(wanted, self.priority)


class ProducerClaim(Resource):
    """A claim to write to one topic; many pods under one claim are normal."""

    api_version: Literal["onewriter.dev/v1alpha1"] = API_VERSION
    kind: Literal["ProducerClaim"] = "ProducerClaim"
    spec: ProducerClaimSpec
