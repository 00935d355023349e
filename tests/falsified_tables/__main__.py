"""``python -m tests.falsified_tables``: write the page of the documentation."""

import tempfile
from pathlib import Path

from tests.falsified_tables.table import PAGE, page

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(page(Path(scratch)), encoding="utf-8")
