"""Operations of a pod on a topic with its own token: ``write``, ``read``, ``move``, ``administer``.

    python - TOPIC VERB...

It prints the result of each attempt as JSON, by verb and name: the data that it read, an HTTP status, or the error
of the stock client. It runs in a pod of the topic's own namespace, and in one of another namespace.
"""

import http.client
import json
import os
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar

TOPIC, *VERBS = sys.argv[1:]
TOKEN = Path(os.environ["TOKEN_FILE"]).read_text()
SERVICE_URL = os.environ["SERVICE_URL"]
HTTP_URL = f"https://{urlsplit(SERVICE_URL).hostname}:8443"
TRUST = ssl.create_default_context(cafile=os.environ["CA_FILE"])

NAME = TOPIC.removeprefix("persistent://")
OWN = f"/onewriter/v1/topics/{NAME}"
ADMIN = f"/admin/v2/persistent/{NAME}"
GROUP = "books"
MODES = (
    pulsar.ProducerAccessMode.WaitForExclusive,
    pulsar.ProducerAccessMode.ExclusiveWithFencing,
)
"""The access modes of the two lines that ``write`` writes."""
SECONDS = 30
REDIRECTS_MAX = 5


def http_status(method: str, path: str, body: Any = None) -> int:
    """Return the answer of the broker that serves the topic."""
    url = HTTP_URL + path
    for _ in range(REDIRECTS_MAX):
        where = urlsplit(url)
        connection = http.client.HTTPSConnection(where.netloc, timeout=SECONDS, context=TRUST)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        connection.request(method, f"{where.path}?{where.query}", content, headers)
        answer = connection.getresponse()
        if answer.status != http.client.TEMPORARY_REDIRECT:
            return answer.status
        url = answer.headers["Location"]
    return http.client.TEMPORARY_REDIRECT


def attempt(what: Callable[[], Any]) -> Any:
    try:
        return what()
    except pulsar.PulsarException as error:
        return type(error).__name__


def taken(receive: Callable[..., Any]) -> list[str]:
    """Return the messages of ``write``, and those that follow soon."""
    found: list[str] = []
    while True:
        patience_seconds = SECONDS if len(found) < len(MODES) else 2
        try:
            found.append(receive(timeout_millis=1_000 * patience_seconds).data().decode())
        except pulsar.Timeout:
            return found


class Tenant:
    """The four verbs."""

    def __init__(self) -> None:
        self.client = pulsar.Client(
            SERVICE_URL,
            tls_trust_certs_file_path=os.environ["CA_FILE"],
            tls_validate_hostname=True,
            authentication=pulsar.AuthenticationToken(TOKEN),
            operation_timeout_seconds=SECONDS,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def write(self) -> dict[str, Any]:
        """Lead and write one line in each access mode; a subscription is created before that."""
        answer = {"subscribed": attempt(self._subscribed)}
        for mode in MODES:
            answer[mode.name] = attempt(partial(self._written, mode))
        return answer

    def _subscribed(self) -> str:
        self.client.subscribe(TOPIC, GROUP).close()
        return "made"

    def _written(self, mode: pulsar.ProducerAccessMode) -> str:
        producer = self.client.create_producer(TOPIC, access_mode=mode)
        producer.send(mode.name.encode())
        producer.close()
        return "written"

    def read(self) -> dict[str, Any]:
        """Read over the wire and over HTTP, without acknowledging the subscription's messages."""
        paths = {
            "status": OWN,
            "history": f"{OWN}/history",
            "segments": f"{OWN}/segments",
            "blocks": f"{OWN}/blocks",
            "statistics": f"{ADMIN}/stats",
            "subscriptions": f"{ADMIN}/subscriptions",
            "peek": f"{ADMIN}/subscription/{GROUP}/position/1",
            "look-up": f"/lookup/v2/topic/persistent/{NAME}",
        }
        return {
            "consumer": attempt(self._consumed),
            "reader": attempt(self._read),
            **{what: http_status("GET", path) for what, path in paths.items()},
        }

    def _consumed(self) -> list[str]:
        consumer = self.client.subscribe(TOPIC, GROUP)
        found = taken(consumer.receive)
        consumer.close()
        return found

    def _read(self) -> list[str]:
        return taken(self.client.create_reader(TOPIC, pulsar.MessageId.earliest).read_next)

    def move(self) -> dict[str, int]:
        """Change what consumers receive, in every way. The last one deletes the subscription."""
        group = f"{ADMIN}/subscription/{GROUP}"
        return {
            "seek": http_status("POST", f"{group}/resetcursor/0"),
            "skip": http_status("POST", f"{group}/skip_all"),
            "acknowledge": http_status("PUT", f"{OWN}/acknowledged/{GROUP}", {"before": "1:1"}),
            "create": http_status("PUT", f"{group}-2"),
            "unsubscribe": http_status("DELETE", f"{group}?force=true"),
        }

    def administer(self) -> dict[str, int]:
        """Try what even the topic's own namespace may not do: it is done with Kubernetes objects."""
        desired = {"revision": "ours", "topics": [], "claims": []}
        return {
            "fence": http_status("POST", f"{OWN}/fence"),
            "hand over": http_status("POST", f"{OWN}/handover"),
            "reassign": http_status("POST", f"{OWN}/reassign", {"to": "default", "reason": "ours"}),
            "trim": http_status("POST", f"{OWN}/trim", {"before": "1:1", "epoch": 1}),
            "declare": http_status("PUT", "/onewriter/v1/desired", desired),
            "terminate": http_status("POST", f"{ADMIN}/terminate"),
            "delete": http_status("DELETE", f"{ADMIN}?force=true"),
            "delete the namespace": http_status(
                "DELETE", f"/admin/v2/namespaces/{NAME.rpartition('/')[0]}?force=true"
            ),
        }


def main() -> None:
    tenant = Tenant()
    answer = {verb: getattr(tenant, verb)() for verb in VERBS}
    print(json.dumps(answer), flush=True)
    os._exit(0)  # otherwise threads of the C++ client may abort the process at shutdown


if __name__ == "__main__":
    main()
