"""``python -m tests.prose``: print each phrase that the style guide replaces; exit with 1 if there is one."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.prose.checker import check

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    wrong = check(ROOT)
    sys.exit("\n".join(wrong) or None)
