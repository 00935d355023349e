"""Candidacies whose calls block: leading a topic term after term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from onewriter._errors import OnewriterError
from onewriter._lead.candidacy import Candidacy as AsyncCandidacy
from onewriter._lead.candidacy import Phase
from onewriter._lead.candidacy import Standing as AsyncStanding
from onewriter._lead.leadership import Leadership as AsyncLeadership
from onewriter._produce.tenure import ProducerOptions
from onewriter.sync._client import Client
from onewriter.sync._contexts import Context
from onewriter.sync._facade import blocking, calling, closing, inner_and_thread
from onewriter.sync._leadership import Leadership
from onewriter.sync._thread import Thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """As ``onewriter.Standing``: a candidate's state at one moment. The calls of its terms block."""

    version: int
    phase: Phase
    term: Leadership | None
    is_connected: bool
    latest_epoch: int | None
    trouble: str
    last_term: Leadership | None
    loss: OnewriterError | None
    since: float

    @classmethod
    def of(cls, standing: AsyncStanding, thread: Thread) -> Self:
        """Convert a standing of the asynchronous candidacy."""
        return cls(
            version=standing.version,
            phase=standing.phase,
            term=_term(standing.term, thread),
            is_connected=standing.is_connected,
            latest_epoch=standing.latest_epoch,
            trouble=standing.trouble,
            last_term=_term(standing.last_term, thread),
            loss=standing.loss,
            since=standing.since,
        )


class Candidacy(Context[AsyncCandidacy]):
    """As ``onewriter.Candidacy``, in a ``with`` statement inside its client's.

    ``on_elected`` runs in a separate thread, so it may block; ``on_change`` runs in the client's thread.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        options: ProducerOptions | None = None,
        *,
        on_elected: Callable[[Leadership], None] | None = None,
        on_change: Callable[[Standing], None] | None = None,
    ) -> None:
        host, thread = inner_and_thread(client)

        async def elected(term: AsyncLeadership) -> None:
            if on_elected is not None:
                await asyncio.to_thread(on_elected, Leadership(term, thread))

        def changed(standing: AsyncStanding) -> None:
            if on_change is not None:
                on_change(Standing.of(standing, thread))

        candidacy = AsyncCandidacy(host, topic, options, on_elected=elected, on_change=changed)
        super().__init__(candidacy, thread)

    def _enter(self) -> None:
        self._thread.call(self._inner.__aenter__())

    def _leave(self, _error: BaseException | None) -> None:
        self.close()

    @property
    def standing(self) -> Standing:
        """The current standing."""
        return Standing.of(self._inner.standing, self._thread)

    @property
    def term(self) -> Leadership | None:
        """The current term; None while the candidate does not lead."""
        return _term(self._inner.term, self._thread)

    def terms(self) -> Iterator[Leadership]:
        """Yield each term, until the candidacy is closed."""
        terms = self._inner.terms()

        async def following() -> AsyncLeadership | None:
            return await anext(terms, None)

        while (term := self._thread.call(following())) is not None:
            yield Leadership(term, self._thread)

    lead = blocking(AsyncCandidacy.lead, Leadership)
    change = blocking(AsyncCandidacy.change, Standing.of)
    release = blocking(AsyncCandidacy.release)
    rejoin = calling(AsyncCandidacy.rejoin)
    close = closing(AsyncCandidacy.close)


def _term(term: AsyncLeadership | None, thread: Thread) -> Leadership | None:
    return None if term is None else Leadership(term, thread)
