"""The transcripts of kubectl in docs/operator.md are what kubectl prints for statuses that the operator writes."""

from __future__ import annotations

import json
import re
import shlex

from tests import transcripts
from tests.cluster.control_plane import WAIT_SECONDS, ControlPlane
from tests.unit.kube import documented_objects

from onewriter_core.json_values import Json

PREFIX = "kubectl "
INSTALLATION = "onewriter"
NAMESPACES = ("shop", INSTALLATION)
AGE = "3m"


def created(cluster: ControlPlane, document: Json) -> None:
    """Create an object and its status; the API server checks both against the definition."""
    namespace = document["metadata"]["namespace"]
    metadata = {"name": document["metadata"]["name"]}
    given = {name: part for name, part in document.items() if name != "status"}
    cluster.apply(given | {"metadata": metadata}, namespace=namespace)
    name = f"{document['kind'].lower()}/{metadata['name']}"
    patch = json.dumps({"status": document["status"]})
    cluster.kubectl(
        *("patch", name, "--subresource=status", "--type=merge", "-p", patch), namespace=namespace
    )
    stored = cluster.get(document["kind"], metadata["name"], namespace=namespace)["status"]
    assert stored == document["status"]


def with_one_age(line: str) -> str:
    """A row of a table, with the age of the docs in its last column."""
    return re.sub(r"(?<= )\d+[smh]$", AGE, line)


def test_transcripts_of_kubectl_are_its_output(api_server: ControlPlane) -> None:
    def output_of(command: str) -> str:
        words = shlex.split(command.removeprefix(PREFIX))
        if words[0] == "wait":
            words.append(f"--timeout={WAIT_SECONDS}s")
        if "-A" in words:  # other tests have objects of their own
            words.append(f"--field-selector=metadata.namespace={INSTALLATION}")
        lines = api_server.kubectl(*words).stdout.splitlines()
        return "\n".join(map(with_one_age, lines))

    for namespace in NAMESPACES:
        api_server.make_namespace(namespace)
    try:
        for document in (
            documented_objects.topic(),
            documented_objects.claim("primary"),
            documented_objects.claim("standby"),
            documented_objects.one_writer(),
        ):
            created(api_server, document)
        found = transcripts.checked("operator.md", ("kubectl get ", "kubectl wait "), output_of)
        assert found == 4
    finally:
        for namespace in NAMESPACES:
            api_server.kubectl("delete", "xt,pclaim,ow", "--all", namespace=namespace)
