"""Shares of the store: which producers may write while a part of it, or all of it, is used up. Pure.

Logs with a common limit have a common ``Share``: the declared logs of one namespace, and its undeclared ones.
``StoreShares.update`` compares what is stored with the limits and sets each share.

    0 ------------------ almost full --- the reserve begins --- it is used --- nothing is written
                            90 %                 92 %              97 %             98.5 %
    new producers        refused
    undeclared topics    read slowly          held
    declared topics                                             read slowly        held
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from onewriter_core.errors import Refused, ServerError

RESERVE_ENDS: Final = 0.97
"""Up to this share of the store's memory, holders of declared topics write without limits."""

HELD_ABOVE: Final = 0.985
"""Above this share nothing is appended: the rest is for fences, cursors and what frees memory."""

SPACE_BELOW: Final = 0.95
"""A share that was used up has room again below this part of its limit."""


class ShareOf(NamedTuple):
    """The logs of a share: a namespace of topics, and whether they are declared."""

    namespace: str
    is_declared: bool


@dataclass(slots=True, eq=False)
class Share:
    """What the logs of this share may do now. ``is_held``: messages wait and are not appended.

    ``is_slow``: the broker reads slowly from connections that send to them.
    """

    is_held: bool = False
    is_slow: bool = False
    refusal: str = ""
    """Why a new producer is refused; empty if it is not."""


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """Shares of the store's memory limit, from 0 to 1; 0 for no limit."""

    namespace_bytes: int = 0
    namespace_share: float = 0.0
    undeclared_share: float = 0.0
    reserve_share: float = 0.0


class StoreShares:
    """The shares of one broker. Nothing is held before the first comparison."""

    def __init__(self, limits: ShareLimits = ShareLimits()) -> None:
        self._limits = limits
        self._shares: dict[ShareOf, Share] = {}
        self._full: dict[str, str] = {}
        """The limits that are used up, with the sentence to show: by namespace; empty for undeclared topics."""
        self.stored: Mapping[ShareOf, int] = {}
        self.is_nearly_full = False
        self._part = 0.0
        """The used part of the store's memory."""
        self.refused = 0
        """Producers that were refused because a share was used up."""

    def of(self, namespace: str, *, is_declared: bool) -> Share:
        """The share of these logs; always the same object."""
        whose = ShareOf(namespace, is_declared)
        share = self._shares.get(whose)
        if share is None:
            share = self._shares[whose] = self._set(whose, Share())
        return share

    def now(self, namespace: str, *, is_declared: bool) -> Share:
        """The present state of the share of these logs. Nothing is kept for a namespace without logs."""
        whose = ShareOf(namespace, is_declared)
        return self._shares.get(whose) or self._set(whose, Share())

    @property
    def held(self) -> int:
        """The number of shares that are held."""
        return sum(share.is_held for share in self._shares.values())

    @property
    def full_namespaces(self) -> Mapping[str, str]:
        """The namespaces that store as much as a quota allows, each with the sentence to show."""
        return {name: text for name, text in self._full.items() if name}

    def check(self, share: Share, *, resumes: bool = False) -> None:
        """Raise Refused if a new producer of the share may not begin. ``resumes``: it holds its topic."""
        if share.refusal:
            self.refused += 1
            code = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR
            raise Refused(code, share.refusal)
        if self.is_nearly_full and not (resumes and not share.is_slow and not share.is_held):
            raise Refused(ServerError.SERVICE_NOT_READY, "the store is almost full; retry later")

    def update(
        self,
        used: int,
        limit: int,
        stored: Mapping[ShareOf, int],
        *,
        is_nearly_full: bool,
    ) -> bool:
        """Compare use and limits; returns whether a share has become free. ``used`` and ``limit``: memory; 0:
        no limit.
        """
        self.stored = stored
        self.is_nearly_full = is_nearly_full
        self._judge(limit)
        self._part = used / limit if limit else 0.0
        is_freed = False
        for whose, share in self._shares.items():
            was_slow = share.is_slow
            self._set(whose, share)
            is_freed = is_freed or (was_slow and not share.is_slow)
        return is_freed

    def _set(self, whose: ShareOf, share: Share) -> Share:
        """Update a share."""
        slow_from, held_from = RESERVE_ENDS, HELD_ABOVE
        share.refusal = self._full.get(whose.namespace, "")
        if not whose.is_declared:
            slow_from, held_from = 0.0, RESERVE_ENDS - self._limits.reserve_share
            share.refusal = share.refusal or self._full.get("", "")
        is_beyond = self.is_nearly_full and self._part > held_from
        share.is_held = bool(share.refusal) or is_beyond
        share.is_slow = share.is_held or (self.is_nearly_full and self._part > slow_from)
        return share

    def _judge(self, limit: int) -> None:
        """Determine which limits are used up. Each stays so until the use is well below it."""
        limits = self._limits
        namespaces: dict[str, int] = {}
        undeclared = 0
        for whose, size in self.stored.items():
            namespaces[whose.namespace] = namespaces.get(whose.namespace, 0) + size
            undeclared += 0 if whose.is_declared else size
        full: dict[str, str] = {}
        for namespace, size in namespaces.items():
            if self._is_full(namespace, size, limits.namespace_bytes):
                full[namespace] = (
                    f"quota exceeded: namespace {namespace} stores {size} bytes, and"
                    f" quota_stored_bytes_per_namespace allows {limits.namespace_bytes};"
                    " shorten its topics' retention, or raise the setting"
                )
            elif self._is_full(namespace, size, limits.namespace_share * limit):
                full[namespace] = (
                    f"quota exceeded: namespace {namespace} stores {size} bytes, and"
                    f" quota_store_share_per_namespace allows {limits.namespace_share} of the"
                    f" store's {limit}; shorten its topics' retention, or raise the setting"
                )
        if self._is_full("", undeclared, limits.undeclared_share * limit):
            full[""] = (
                f"quota exceeded: topics that no ExclusiveTopic declares store {undeclared} bytes,"
                f" and undeclared_store_share allows {limits.undeclared_share} of the store's"
                f" {limit}; delete some, declare this one, or raise the setting"
            )
        self._full = full

    def _is_full(self, name: str, size: int, limit: float) -> bool:
        factor = SPACE_BELOW if name in self._full else 1.0
        return limit > 0 and size > limit * factor
