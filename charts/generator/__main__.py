"""``python -m charts.generator``: write the generated files of the chart."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from charts.generator import crd, dashboard, documents, schema

CHART = Path(__file__).resolve().parents[1] / "onewriter"


def files() -> Mapping[Path, str]:
    """Every generated file and its content."""
    return {
        CHART / "values.yaml": documents.values(),
        CHART / "values.schema.json": schema.text(),
        CHART / "README.md": documents.readme(),
        CHART / "dashboards" / "onewriter.json": dashboard.text(),
        **{
            CHART / "templates" / "crds" / crd.file_name(kind): documents.crd_template(
                crd.definition(kind)
            )
            for kind in crd.KINDS
        },
    }


def main() -> int:
    """Write the files."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
