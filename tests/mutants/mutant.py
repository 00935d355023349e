"""What a mutant is: one realistic bug, planted into one symbol of the product."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug that the tests must catch.

    ``promises`` are the numbers in docs/invariants.md that the bug breaks. ``target`` names a symbol: for Python
    ``package.module:Class.method``; for a script of the store ``lua:script`` or ``lua:script/function``. ``old`` is a text
    that occurs exactly once in that symbol's source, and ``new`` replaces it. ``caught_by`` are the paths or node ids of
    the tests that are likely to catch the bug, the cheapest first.
    """

    name: str
    promises: tuple[str, ...]
    target: str
    bug: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    @property
    def component(self) -> str:
        """Where the bug is: scripts, core, broker, client, operator or pipeline."""
        if self.target.startswith("lua:"):
            return "scripts"
        package = self.target.partition(".")[0]
        return {
            "onewriter_core": "core",
            "onewriter_broker": "broker",
            "onewriter": "client",
            "onewriter_operator": "operator",
            "onewriter_pipeline": "pipeline",
            "pyspark_onewriter": "pipeline",
        }[package]
