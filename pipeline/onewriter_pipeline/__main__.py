"""The onewriter-pipeline command, also as ``python -m onewriter_pipeline``: it says what to install if a part is missing."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

from onewriter_core.errors import install_command


def main() -> NoReturn:
    """Run the command, or name the missing part and exit with 1."""
    try:
        cli = importlib.import_module("onewriter_pipeline.cli")
    except ModuleNotFoundError as error:
        sys.exit(
            f"onewriter-pipeline needs more than is installed (no module {error.name}): "
            f"run {install_command('spark')}"
        )
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
