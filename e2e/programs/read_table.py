"""Prints a topic's rows in the table of messages: values and epochs, as JSON. Runs in the pipeline's image."""

import json
import sys

from deltalake import DeltaTable


def main(folder: str, topic: str) -> None:
    table = DeltaTable(f"{folder}/messages").to_pyarrow_table(
        columns=["value", "__epoch", "__topic"]
    )
    rows = [row for row in table.to_pylist() if row["__topic"] == topic]
    numbers = sorted(int(row["value"]) for row in rows)
    epochs = sorted({row["__epoch"] for row in rows})
    print(json.dumps({"numbers": numbers, "epochs": epochs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
