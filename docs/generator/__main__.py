"""``python -m docs.generator``: write the reference pages that follow from the code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from docs.generator import commands, metrics, names, openapi, resources, routes, settings

from onewriter_testing.in_process import in_process_broker

REFERENCE: Final = Path(__file__).resolve().parents[1] / "reference"


def files() -> Mapping[Path, str]:
    """Every file that is written, and its contents."""
    with in_process_broker() as broker:
        found = {
            "commands.md": commands.text(),
            "http-routes.md": openapi.routes_page(),
            "metrics.md": metrics.text(broker),
            "names.md": names.text(broker, routes.names(broker)),
            "openapi.json": openapi.text(),
            "resources.md": resources.text(),
            "settings.md": settings.text(),
        }
    return {REFERENCE / name: text for name, text in found.items()}


def main() -> int:
    """Write them."""
    # The broker that is looked at has nothing to say.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
