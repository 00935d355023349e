"""The chart installs, its own test passes, and the status shows declared topics."""

from __future__ import annotations

import re

import yaml
from e2e import manifests
from e2e.installation import NAMESPACE, Installation
from e2e.world import World
from e2e.writers import until
from tests.cluster import images
from tests.cluster.control_plane import WAIT_SECONDS
from tests.cluster.plugin import CRDS

EXAMPLES = sorted((images.ROOT / "examples").glob("*.yaml"))


def test_the_installation_runs_in_a_namespace_that_enforces_the_restricted_standard(
    installation: Installation,
) -> None:
    labels = installation.cluster.get("namespace", NAMESPACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert installation.is_ready()


def test_helm_test_proves_the_refusal(installation: Installation) -> None:
    output = installation.helm("test", "onewriter", "--filter=name=onewriter-test", "--logs")
    assert re.search(r"claimed: epoch \d+", output)
    assert "the former writer is refused" in output
    assert "is not given again" in output


def test_the_examples_are_ready_and_kubectl_shows_them(world: World) -> None:
    for example in EXAMPLES:
        world.cluster.kubectl("apply", f"--filename={example}", namespace="default")
    try:
        for name in ("orders", "payments"):
            ready = ("wait", "--for=condition=Ready", f"xt/{name}", f"--timeout={WAIT_SECONDS}s")
            world.cluster.kubectl(*ready, namespace="default")
        table = world.cluster.kubectl("get", "xt,pclaim", namespace="default").stdout
        assert re.search(r"NAME +EPOCH +HOLDER +STATE +READY +AGE", table)
        assert re.search(r"exclusivetopic\.onewriter\.dev/orders .* True ", table)
        assert re.search(r"producerclaim\.onewriter\.dev/payments-primary +payments +", table)
    finally:
        for example in EXAMPLES:
            world.cluster.kubectl("delete", f"--filename={example}", namespace="default")


def test_every_field_is_explained(world: World) -> None:
    for path in (
        "exclusivetopics.spec.fencing.podPolicy",
        "exclusivetopics.status.fencedPods.outcome",
        "producerclaims.spec.subject",
    ):
        output = world.cluster.kubectl("explain", path).stdout
        assert description(path) in " ".join(output.split()), path


def description(path: str) -> str:
    """Return the description of a field as ``kubectl explain`` shows it after the installation."""
    plural, *fields = path.split(".")
    definitions = [yaml.safe_load(file.read_text()) for file in CRDS]
    (spec,) = [each["spec"] for each in definitions if each["spec"]["names"]["plural"] == plural]
    found = spec["versions"][0]["schema"]["openAPIV3Schema"]
    for name in fields:
        found = found.get("items", found)["properties"][name]
    return " ".join(str(found["description"]).split())


def test_a_wrong_manifest_is_refused_by_field_and_rule(world: World) -> None:
    wrong = manifests.topic("wrong", promotion={"policy": "Loudest"})
    answer = world.cluster.apply(wrong, namespace=world.namespace, check=False)
    assert "spec.promotion.policy" in answer
    assert "Loudest" in answer


def test_a_claim_for_a_topic_that_is_not_there_waits_for_it(world: World) -> None:
    world.apply(manifests.claim("early"))

    def ready() -> str:
        status = (world.api.get("producerclaims", world.namespace, "early") or {}).get("status", {})
        return next(
            (each["reason"] for each in status.get("conditions", ()) if each["type"] == "Ready"), ""
        )

    until(lambda: ready() == "TopicMissing", ready)
    world.apply(manifests.topic("early"))
    until(lambda: ready() == "Ready", ready)
