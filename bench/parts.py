"""A division of the page whose parts are measured one by one, each against a broker of its own.

What ``bench.sdk_run`` and ``bench.pipeline_run`` have in common: each says what its parts are and how
long they take. A part is written as soon as it is done; what other commands wrote stays, and so do
the parts that a run leaves out.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from bench.machine import describe_machine, others_share_now
from bench.onewriter_lab import Onewriter
from bench.report import OUTPUT, Conditions, Report, command_line, merged, part

Options = TypeVar("Options")


@dataclass(frozen=True)
class Part(Generic[Options]):
    """One section of the page; ``measure`` is given a running broker."""

    title: str
    measure: Callable[[Onewriter, Options], Report]


@dataclass(frozen=True)
class Division(Generic[Options]):
    """What one command writes. ``parts`` by name, in the order of the page."""

    heading: str
    module: str
    """What ``python -m`` is given."""
    target: str
    """Of the Makefile."""
    parts: Mapping[str, Part[Options]]

    def merged(self, page: str, measured: Mapping[str, str]) -> str:
        """The page with these parts in it, by title; everything else stays."""
        titles = [each.title for each in self.parts.values()]
        return merged(page, self.heading, self.target, titles, measured)

    def parser(self, description: str | None) -> argparse.ArgumentParser:
        """The options that every such command has."""
        found = argparse.ArgumentParser(
            prog=f"python -m {self.module}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        found.add_argument(
            "--parts", default=",".join(self.parts), help="of " + ", ".join(self.parts)
        )
        found.add_argument("--repetitions", type=int, default=5, help="of rates, in alternation")
        found.add_argument("--output", type=Path, default=OUTPUT)
        return found

    def chosen(self, parser: argparse.ArgumentParser, parts: str) -> list[str]:
        """The names in ``--parts``; ends the command where one is unknown."""
        names = [name.strip() for name in parts.split(",") if name.strip()]
        if unknown := set(names) - set(self.parts):
            parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
        return names

    def run(self, names: Sequence[str], options: Options, output: Path) -> None:
        """Measure these parts and write each into the page."""
        others_share, machine = others_share_now(), describe_machine()
        print(machine, flush=True)
        for name in names:
            chosen = self.parts[name]
            began = time.monotonic()
            with Onewriter() as lab:
                text, goals, lines = chosen.measure(lab, options)
            load = os.getloadavg()[0]
            conditions = Conditions(str(machine), command_line(self.module), others_share, load)
            section = part(text, conditions, goals, lines)
            before = output.read_text() if output.exists() else ""
            output.write_text(self.merged(before, {chosen.title: section}))
            print(f"\n{section}\n\n{name} took {time.monotonic() - began:.0f} s", flush=True)
