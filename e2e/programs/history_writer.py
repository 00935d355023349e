"""A pod that writes numbered messages under several epochs, one after the other, and ends.

Numbers begin at FIRST. Each of TENURES epochs gets MESSAGES of them, of SIZE bytes each. At the end the pod prints
the number of acknowledged messages as JSON.
"""

import json
import os
from pathlib import Path

import pulsar

FIRST = int(os.environ.get("FIRST", "0"))
TENURES = int(os.environ.get("TENURES", "1"))
MESSAGES = int(os.environ["MESSAGES"])
SIZE = int(os.environ.get("SIZE", "100"))
SECONDS_MAX = 60


def main() -> None:
    client = pulsar.Client(
        os.environ["SERVICE_URL"],
        tls_trust_certs_file_path=os.environ["CA_FILE"],
        tls_validate_hostname=True,
        authentication=pulsar.AuthenticationToken(Path(os.environ["TOKEN_FILE"]).read_text),
        operation_timeout_seconds=SECONDS_MAX,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn),
    )
    for tenure in range(TENURES):
        producer = client.create_producer(
            os.environ["TOPIC"],
            access_mode=pulsar.ProducerAccessMode.WaitForExclusive,
            batching_max_messages=20,
            block_if_queue_full=True,
        )
        refused: list[str] = []
        for number in range(MESSAGES):
            content = str(FIRST + tenure * MESSAGES + number).ljust(SIZE).encode()
            producer.send_async(content, lambda result, _, to=refused: note(result, to))
        producer.flush()
        producer.close()
        if refused:
            raise SystemExit(f"not acknowledged: {refused}")
    print(json.dumps({"written": TENURES * MESSAGES}), flush=True)
    os._exit(0)  # otherwise threads of the C++ client may abort the process at shutdown


def note(result: pulsar.Result, refused: list[str]) -> None:
    if result != pulsar.Result.Ok:
        refused.append(str(result))


if __name__ == "__main__":
    main()
