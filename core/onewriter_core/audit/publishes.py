"""Checks S15 in a log: each version of an app is published once, in order, and the state remembers the last one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onewriter_core.audit.facts import PublishRun
from onewriter_core.audit.findings import Finding
from onewriter_core.ids import Position

APPS_REMEMBERED_MAX = 10_000
"""Apps of one log whose last version is remembered. The broker allows fewer at a time."""


@dataclass(slots=True)
class VersionChecker:
    """Checks the publishes of one log in order. ``log`` is its name; ``forgotten``: apps whose versions an
    administrator removed, so that they may begin again.
    """

    log: str
    forgotten: frozenset[str] = frozenset()
    _versions: dict[str, tuple[int, Position]] = field(default_factory=dict)

    def published(self, run: PublishRun) -> Iterator[Finding]:
        """Check the next publishes."""
        before = self._versions.get(run.app)
        if before is not None and run.version <= before[0] and run.app not in self.forgotten:
            yield self._finding(
                (str(before[1]), str(run.first)),
                f"version {run.version} of {run.app} was published after version {before[0]}",
            )
        elif before is not None or len(self._versions) < APPS_REMEMBERED_MAX:
            self._versions[run.app] = (run.last_version, run.first)

    def finish(self, published: Mapping[str, int]) -> Iterator[Finding]:
        """Compare with the versions in the state, which is written atomically with the log."""
        for app, (version, position) in self._versions.items():
            known = published.get(app)
            if app not in self.forgotten and (known is None or known < version):
                yield self._finding(
                    (str(position), "state"),
                    f"version {version} of {app} is published, but the last version in the state is"
                    f" {'none' if known is None else known}",
                )

    def _finding(self, where: tuple[str, ...], sentence: str) -> Finding:
        return Finding(self.log, "S15", where, sentence)
