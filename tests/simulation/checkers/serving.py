"""S14: no producer is granted a topic while another one may still serve it."""

from __future__ import annotations

from tests.simulation.history import History, Kind, Outcome


def alone(history: History) -> list[str]:
    """S14: no grant of a later epoch is answered before a former holder's deadline.

    Deadlines count from before the CHECK was sent, at the process that serves. It ends them itself when it closes
    its producer or is informed of its end.
    """
    problems: list[str] = []
    grants = [g for g in history.of(Kind.GRANT) if g.outcome is Outcome.OK]
    for serve in history.of(Kind.SERVE):
        if serve.outcome is not Outcome.OK or serve.epoch is None:
            continue
        problems += [
            f"{grant.holder} was granted epoch {grant.epoch} at {grant.completed_at:.3f}, while"
            f" {serve.holder} of epoch {serve.epoch} served until {serve.until:.3f}"
            for grant in grants
            if grant.topic == serve.topic
            and grant.holder != serve.holder
            and (grant.epoch or 0) > serve.epoch
            and grant.completed_at < serve.until
        ]
    return problems
