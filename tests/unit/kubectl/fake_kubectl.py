"""A fake kubectl with scripted answers that records its command lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

PROGRAM = """\
#!{python}
import json, re, sys, time
from pathlib import Path
here = Path({directory!r})
words = " ".join(sys.argv[1:])
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
answers = json.loads((here / "answers").read_text())
for number, answer in enumerate(answers):
    if re.search(answer["asked"], words):
        break
else:
    sys.exit("error: unexpected command line: " + words)
if answer.get("once"):
    answers.pop(number)
    (here / "answers").write_text(json.dumps(answers))
sys.stdout.write(answer.get("out", ""))
sys.stderr.write(answer.get("err", ""))
sys.stdout.flush()
if answer.get("stays"):
    time.sleep(60)
sys.exit(answer.get("code", 0))
"""


class FakeKubectl:
    """The newest of ``answers`` whose pattern matches is used."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "kubectl"
        self._directory = directory
        self._answers: list[Json] = []
        self.program.write_text(PROGRAM.format(python=sys.executable, directory=str(directory)))
        self.program.chmod(0o755)
        (directory / "calls").touch()
        self.answers("^nothing")

    def answers(self, asked: str, out: str = "", **more: Any) -> None:
        """Answer a command line that matches; ``code``, ``err``, ``once``, ``stays`` as they say."""
        written = self._directory / "answers"
        known = json.loads(written.read_text()) if written.exists() else []
        written.write_text(json.dumps([{"asked": asked, "out": out, **more}, *known]))

    def has(self, asked: str, *items: Json, **more: Any) -> None:
        """Answer with a list of objects."""
        self.answers(asked, json.dumps({"kind": "List", "items": list(items)}), **more)

    def shows(self, asked: str, item: Json, **more: Any) -> None:
        """Answer with one object."""
        self.answers(asked, json.dumps(item), **more)

    def fails(self, asked: str, err: str, **more: Any) -> None:
        self.answers(asked, err=err, code=1, **more)

    @property
    def calls(self) -> list[str]:
        """Every command line, its words joined."""
        lines = (self._directory / "calls").read_text().splitlines()
        return [" ".join(json.loads(line)) for line in lines]


FORBIDDEN = 'Error from server (Forbidden): services is forbidden: User "eve" cannot list it\n'
NOT_FOUND = 'Error from server (NotFound): exclusivetopics.onewriter.dev "orders" not found\n'
AWAY = (
    "E0101 00:00:00.000000 1 memcache.go:265] couldn't get current server API group list\n"
    "Unable to connect to the server: dial tcp 127.0.0.1:1: connect: connection refused\n"
)


def topic(name: str = "orders", **shown: Any) -> Json:
    """An ExclusiveTopic with a writer and transitions."""
    status: Json = {
        "observedGeneration": 1,
        "topic": f"persistent://shop/default/{name}",
        "epoch": 7,
        "holder": {
            "producerName": "w1",
            "claim": "primary",
            "pod": "writer-1",
            "podUID": "u1",
            "node": "lab",
            "address": "10.0.0.1:1",
            "since": "2026-01-01T00:00:00.000Z",
        },
        "waiting": 1,
        "durability": "Local",
        "transitions": [
            transition(7, "Silent", "w1", "writer-1", 143),
            transition(5, "Initial", "w0", "writer-0", None, "2025-12-31T00:00:00.000Z"),
        ],
        "conditions": [
            condition("Ready", "True", "Ready", "a writer holds the topic"),
            condition("Serving", "True", "Served", "served by broker-0"),
            condition("WriterActive", "True", "Held", "w1 writes, epoch 7"),
            condition("PolicyApplied", "True", "Applied", "every broker has it"),
        ],
    }
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": {"name": name, "namespace": "shop", "generation": 1},
        "spec": {},
        "status": {**status, **shown},
    }


def condition(kind: str, status: str, reason: str, message: str = "") -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def transition(
    epoch: int,
    cause: str,
    producer: str | None,
    pod: str | None,
    gap: int | None,
    at: str = "2026-01-01T00:00:00.000Z",
) -> Json:
    found: Json = {"epoch": epoch, "cause": cause, "at": at, "producerName": producer, "pod": pod}
    if gap is not None:
        detection = 2_512 if cause == "Silent" else 0
        found |= {"leaderlessMs": gap, "detectionMs": detection, "handoverMs": gap}
        found["outageMs"] = detection + gap
    return {name: value for name, value in found.items() if value is not None}


def claim(name: str, *producers: Json, topic: str = "orders", ready: str = "True") -> Json:
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ProducerClaim",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"topicRef": {"name": topic}},
        "status": {
            "producers": list(producers),
            "conditions": [condition("Ready", ready, "Ready" if ready == "True" else "Pending")],
        },
    }


WAITER: Json = {"producerName": "w2", "state": "Waiting", "pod": "writer-2", "queuePosition": 1}
WRITER: Json = {"producerName": "w1", "state": "Granted", "pod": "writer-1", "epoch": 7}

POD: Json = {
    "kind": "Pod",
    "metadata": {"name": "onewriter-broker-0", "namespace": "system", "labels": {}},
    "spec": {
        "containers": [
            {"name": "broker", "ports": [{"name": "http", "containerPort": 8080}]},
        ]
    },
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def service(namespace: str = "system", release: str = "onewriter") -> Json:
    labels = {"app.kubernetes.io/instance": release}
    metadata = {"name": "x", "namespace": namespace, "labels": labels}
    return {"kind": "Service", "metadata": metadata}
