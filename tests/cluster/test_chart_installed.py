"""The chart in a real control plane: install, upgrade, rollback and uninstall, with only its rights.

No pod runs here (there is no node); the tests on the lab's nodes cover running pods.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest
import yaml
from cryptography import x509
from tests.cluster import commands
from tests.cluster.binaries import program
from tests.cluster.control_plane import COMMAND_SECONDS, ControlPlane

from onewriter_core.errors import Unavailable
from onewriter_operator.configuration import Configuration
from onewriter_operator.installation import created_once, objects
from onewriter_operator.release.cli import release

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "onewriter"
NAMESPACE = "system"
RESTRICTED = {
    f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")
}
SECONDS_MAX = 240.0
HOOK_SECONDS = 15
"""Time limit of a hook whose condition never holds: sufficient for one check."""
ANCHOR: Json = {
    "apiVersion": "onewriter.dev/v1alpha1",
    "kind": "BucketAnchor",
    "metadata": {"name": "shard-0", "namespace": NAMESPACE},
}


class Installation:
    """A release of the chart. ``helm`` raises AssertionError if it fails."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster = cluster

    def helm(self, *arguments: str) -> str:
        command = [str(program("helm")), f"--kubeconfig={self.cluster.kubeconfig}", *arguments]
        done = commands.run([*command, f"--namespace={NAMESPACE}"], seconds=COMMAND_SECONDS)
        assert done.returncode == 0, f"{' '.join(arguments[:3])}: {done.stderr}"
        return done.stdout

    def install(self, *settings: str) -> None:
        values = [f"--set={each}" for each in settings]
        # Hooks are pods, and there is no node that runs pods.
        self.helm("upgrade", "--install", "onewriter", str(CHART), "--no-hooks", *values)

    def get(self, kind: str, name: str) -> Json:
        return self.cluster.get(kind, name, namespace=NAMESPACE)

    def names(self, kind: str) -> list[str]:
        return list(self.cluster.names(kind, namespace=NAMESPACE))

    @property
    def configuration(self) -> Configuration:
        text = self.get("configmap", "onewriter-config")["data"]["configuration.yaml"]
        return Configuration.from_document(yaml.safe_load(text))

    def installed(self) -> list[Json]:
        """Return the objects that the operator would install, owned by the chart."""
        owner = self.get("configmap", "onewriter-config")
        return [*created_once(self.configuration, owner), *objects(self.configuration, owner)]

    def as_account(self, account: str, *arguments: str, stdin: str = "") -> tuple[int, str]:
        """Run kubectl with a ServiceAccount's rights; return its exit code and output."""
        done = self.cluster.kubectl(
            *(f"--as=system:serviceaccount:{NAMESPACE}:{account}", *arguments),
            stdin=stdin,
            check=False,
            namespace=NAMESPACE,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def onewriter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with ControlPlane(tmp_path_factory.mktemp("chart"), workloads=True) as cluster:
        cluster.make_namespace(NAMESPACE, RESTRICTED)
        found = Installation(cluster)
        found.install()
        yield found


def eventually(holds: Callable[[], bool], words: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, words
        time.sleep(0.2)


def templates(documents: list[Json]) -> Iterator[tuple[str, Json]]:
    for each in documents:
        name = f"{each['kind'].lower()}-{each['metadata']['name']}"
        if each["kind"] == "Pod":
            yield name, each
        elif each["kind"] in {"Deployment", "StatefulSet", "Job"}:
            template = copy.deepcopy(each["spec"]["template"])
            for claim in each["spec"].get("volumeClaimTemplates", ()):
                name_of_claim = claim["metadata"]["name"]
                volume = {"name": name_of_claim, "persistentVolumeClaim": {"claimName": "any"}}
                template["spec"]["volumes"].append(volume)
            yield name, template


def test_every_pod_passes_the_restricted_standard(onewriter: Installation) -> None:
    text = onewriter.helm("template", "onewriter", str(CHART), "--kube-version=1.36.3")
    documents = [each for each in yaml.safe_load_all(text) if each] + onewriter.installed()
    seen = 0
    for name, template in templates(documents):
        pod = copy.deepcopy(template)
        pod |= {"apiVersion": "v1", "kind": "Pod"}
        pod["metadata"] = {**pod["metadata"], "name": name, "namespace": NAMESPACE}
        pod["spec"].pop("serviceAccountName", None)  # hooks' accounts exist only with the hook
        done = onewriter.cluster.kubectl(
            "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod), check=False
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert "Warning" not in done.stderr, f"{name}: {done.stderr}"
        seen += 1
    assert seen == 6, "operator, store, broker, two hooks, the test"


def test_the_namespace_does_refuse_other_pods(onewriter: Installation) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "root", "namespace": NAMESPACE},
        "spec": {"containers": [{"name": "root", "image": "localhost/none:1"}]},
    }
    done = onewriter.cluster.kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod), check=False
    )
    assert 'violates PodSecurity "restricted' in done.stderr


# ------------------------------------------------------------ rights


def apply_as_operator(onewriter: Installation, document: Json) -> None:
    verb = ["create", "-f", "-"]
    if document["kind"] != "Secret":
        verb = ["apply", "--server-side", "--field-manager=onewriter-operator", "-f", "-"]
    code, answer = onewriter.as_account("onewriter-operator", *verb, stdin=yaml.safe_dump(document))
    assert code == 0 or "AlreadyExists" in answer, answer


def test_the_operator_installs_store_and_brokers_with_its_own_rights(
    onewriter: Installation,
) -> None:
    for _ in range(2):  # repeatable
        for document in onewriter.installed():
            apply_as_operator(onewriter, document)
    for kind, names in {
        "statefulset": ["onewriter-broker", "onewriter-valkey"],
        "networkpolicy": [
            "onewriter-broker",
            "onewriter-checks",
            "onewriter-operator",
            "onewriter-valkey",
        ],
        "poddisruptionbudget": ["onewriter-broker", "onewriter-operator", "onewriter-valkey"],
    }.items():
        assert sorted(onewriter.names(kind)) == names
    # Their pods are created, so this namespace refuses no part of them.
    eventually(
        lambda: {"onewriter-broker-2", "onewriter-valkey-0"} <= set(onewriter.names("pod")),
        "pods of the StatefulSets",
    )


def test_a_password_that_exists_is_not_made_again(onewriter: Installation) -> None:
    for document in onewriter.installed():
        apply_as_operator(onewriter, document)
    before = onewriter.get("secret", "onewriter-valkey-password")["data"]
    for document in onewriter.installed():
        apply_as_operator(onewriter, document)
    assert onewriter.get("secret", "onewriter-valkey-password")["data"] == before


MAY = {
    "onewriter-operator": {
        "patch exclusivetopics.onewriter.dev/status",
        "patch producerclaims.onewriter.dev/status",
        "patch exclusivetopics.onewriter.dev",
        "create pods/eviction",
        "watch pods",
        "list endpointslices.discovery.k8s.io",
        "create events.events.k8s.io",
        "create leases.coordination.k8s.io",
        "watch statefulsets.apps",
        "list bucketanchors.onewriter.dev",
    },
    "onewriter-broker": {
        "create tokenreviews.authentication.k8s.io",
        "create bucketanchors.onewriter.dev",
    },
}
MAY_NOT = {
    "onewriter-operator": {
        "list secrets",
        "get secrets",
        "create pods",
        "create clusterroles.rbac.authorization.k8s.io",
        "patch deployments.apps",
        "update bucketanchors.onewriter.dev",
        "create pods/exec",
        "delete exclusivetopics.onewriter.dev",
        "list nodes",
        "create endpointslices.discovery.k8s.io",
    },
    "onewriter-broker": {
        "get secrets",
        "list pods",
        "get exclusivetopics.onewriter.dev",
        "delete bucketanchors.onewriter.dev",
        "list bucketanchors.onewriter.dev",
        "create subjectaccessreviews.authorization.k8s.io",
    },
}


@pytest.mark.parametrize("account", MAY)
def test_rights(onewriter: Installation, account: str) -> None:
    def can(each: str) -> bool:
        verb, resource = each.split()
        resource, _, sub = resource.partition("/")
        more = [f"--subresource={sub}"] if sub else []
        code, _ = onewriter.as_account(account, "auth", "can-i", verb, resource, *more)
        return code == 0

    eventually(lambda: all(map(can, MAY[account])), f"{account} may do all of {MAY[account]}")
    assert {each for each in MAY_NOT[account] if can(each)} == set(), "may"


def test_a_broker_writes_its_anchor_and_no_other(onewriter: Installation) -> None:
    other = copy.deepcopy(ANCHOR)
    other["metadata"]["name"] = "shard-1"
    for document in (ANCHOR, other):
        code, answer = onewriter.as_account(
            "onewriter-broker", "create", "-f", "-", stdin=yaml.safe_dump(document)
        )
        assert code == 0, answer
    code, _ = onewriter.as_account("onewriter-broker", "get", "bucketanchor", "shard-0")
    assert code == 0
    code, answer = onewriter.as_account("onewriter-broker", "get", "bucketanchor", "shard-1")
    assert code != 0
    assert "cannot get" in answer


def test_editors_of_a_namespace_may_declare_topics(onewriter: Installation) -> None:
    cluster = onewriter.cluster
    cluster.make_namespace("shop")
    cluster.kubectl(
        *("create", "rolebinding", "people", "--clusterrole=edit", "--user=alice"), namespace="shop"
    )

    def can(*asked: str) -> bool:
        done = cluster.kubectl("auth", "can-i", *asked, "--as=alice", check=False, namespace="shop")
        return done.returncode == 0

    eventually(lambda: can("create", "exclusivetopics.onewriter.dev"), "the role is aggregated")
    assert can("get", "bucketanchors.onewriter.dev")
    assert not can("update", "bucketanchors.onewriter.dev")
    assert not can("patch", "exclusivetopics.onewriter.dev", "--subresource=status")


# ------------------------------------------------------------ upgrades


def leaf(secret: Json) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))


def test_certificates_stay_over_an_upgrade_and_are_renewed_in_time(onewriter: Installation) -> None:
    onewriter.install()
    names = ("onewriter-broker-tls", "onewriter-webhook-tls", "onewriter-ca")
    before = {name: onewriter.get("secret", name) for name in names}
    onewriter.install("operator.replicas=3")
    for name, secret in before.items():
        assert onewriter.get("secret", name)["data"] == secret["data"]
    webhook = onewriter.get("mutatingwebhookconfiguration", "onewriter-system")["webhooks"][0]
    trusted = webhook["clientConfig"]["caBundle"]
    assert trusted == before["onewriter-ca"]["data"]["ca.crt"], "what the API server trusts"
    # Less than the last third of a longer validity is left: everything is renewed, including the authority.
    onewriter.install("certificates.days=36500")
    after = onewriter.get("secret", "onewriter-broker-tls")
    assert after["data"] != before["onewriter-broker-tls"]["data"]
    authority = onewriter.get("secret", "onewriter-ca")["data"]["ca.crt"]
    assert after["data"]["ca.crt"] == authority
    leaf(after).verify_directly_issued_by(
        x509.load_pem_x509_certificate(base64.b64decode(authority))
    )


def test_a_certificate_for_other_names_has_the_same_ca(onewriter: Installation) -> None:
    onewriter.install()
    authority = onewriter.get("secret", "onewriter-ca")["data"]["ca.crt"]
    before = leaf(onewriter.get("secret", "onewriter-broker-tls"))
    onewriter.install("clusterDomain=example.internal")
    after = leaf(onewriter.get("secret", "onewriter-broker-tls"))
    assert after != before
    assert onewriter.get("secret", "onewriter-ca")["data"]["ca.crt"] == authority
    onewriter.install()


def test_a_rollback_brings_the_former_configuration_back_and_keeps_anchors(
    onewriter: Installation,
) -> None:
    onewriter.cluster.apply(ANCHOR)
    uid = onewriter.get("bucketanchor", "shard-0")["metadata"]["uid"]
    onewriter.install()
    onewriter.install("brokers.replicas=5")
    assert onewriter.configuration.brokers.replicas == 5
    onewriter.helm("rollback", "onewriter", "--no-hooks")
    assert onewriter.configuration.brokers.replicas == 3
    assert onewriter.get("bucketanchor", "shard-0")["metadata"]["uid"] == uid


# ------------------------------------------------------------ hooks


def kubeconfig(onewriter: Installation, account: str, directory: Path) -> Path:
    """Write a kubeconfig with a ServiceAccount's rights."""
    administrator = yaml.safe_load(onewriter.cluster.kubeconfig.read_text())
    token = onewriter.cluster.kubectl(
        "create", "token", account, namespace=NAMESPACE
    ).stdout.strip()
    administrator["users"][0]["user"] = {"token": token}
    path = directory / f"{account}.kubeconfig"
    path.write_text(yaml.safe_dump(administrator))
    return path


HOOKS_MAY = {
    "readiness": [
        "get deployments.apps/onewriter-operator",
        "create exclusivetopics.onewriter.dev",
    ],
    "clean-up": [
        "patch deployments.apps/onewriter-operator",
        "list exclusivetopics.onewriter.dev",
    ],
}
"""One right of each hook's role. It takes effect a moment after it was stored."""


def hook_objects(onewriter: Installation, component: str) -> None:
    """Create the accounts and rights of a hook, as Helm does before it."""
    text = onewriter.helm("template", "onewriter", str(CHART), "--kube-version=1.36.3")
    for each in yaml.safe_load_all(text):
        if not each or each["kind"] == "Job":
            continue
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == component:
            onewriter.cluster.apply(each)
    account = f"system:serviceaccount:{NAMESPACE}:onewriter-{component}"
    for request in HOOKS_MAY[component]:
        onewriter.cluster.until_allowed(account, *request.split(), namespace=NAMESPACE)


def run_hook(
    onewriter: Installation, verb: str, directory: Path, *more: str
) -> click.testing.Result:
    account = {"wait": "onewriter-readiness", "clean-up": "onewriter-clean-up"}[verb]
    hook_objects(onewriter, account.partition("-")[2])
    path = directory / "configuration.yaml"
    path.write_text(onewriter.get("configmap", "onewriter-config")["data"]["configuration.yaml"])
    arguments = [verb, f"--configuration={path}", f"--timeout-seconds={HOOK_SECONDS}", *more]
    arguments.append(f"--kubeconfig={kubeconfig(onewriter, account, directory)}")
    return click.testing.CliRunner().invoke(release, arguments)


def test_readiness_reports_what_is_missing(onewriter: Installation, tmp_path: Path) -> None:
    onewriter.install()

    def is_looked_at() -> bool:
        operator = onewriter.get("deployment", "onewriter-operator")
        seen = operator.get("status", {}).get("observedGeneration", 0)
        return bool(seen == operator["metadata"]["generation"])

    eventually(is_looked_at, "a controller knows the operator's Deployment")
    done = run_hook(onewriter, "wait", tmp_path)
    assert isinstance(done.exception, Unavailable), done.output
    assert re.search(r"onewriter-operator: \d of 2 pods are (updated|ready)", str(done.exception))


TOPIC: Json = {
    "apiVersion": "onewriter.dev/v1alpha1",
    "kind": "ExclusiveTopic",
    "metadata": {
        "name": "orders",
        "namespace": "default",
        "finalizers": ["onewriter.dev/topic-cleanup", "example.org/theirs"],
    },
}


def test_nothing_is_stuck_after_an_uninstallation_and_nothing_is_lost(
    onewriter: Installation, tmp_path: Path
) -> None:
    for document in onewriter.installed():
        apply_as_operator(onewriter, document)
    cluster = onewriter.cluster
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    lease["metadata"] = {"name": "onewriter-operator", "namespace": NAMESPACE}  # type: ignore[assignment]
    cluster.apply(TOPIC, ANCHOR, lease)
    eventually(lambda: "data-onewriter-valkey-0" in onewriter.names("pvc"), "the volume's claim")
    # The output of `helm template` contains the Job too: applying it changes nothing.
    arguments = ("--helm-release=onewriter", f"--timeout-seconds={SECONDS_MAX}")
    done = run_hook(onewriter, "clean-up", tmp_path, *arguments)
    assert done.exit_code == 1, done.output
    assert "is not being uninstalled" in done.output
    assert onewriter.get("deployment", "onewriter-operator")["spec"]["replicas"] == 2
    revision = max(
        int(each["revision"])
        for each in json.loads(onewriter.helm("history", "onewriter", "-o", "json"))
    )
    # Helm stores this before its first hook.
    onewriter.cluster.kubectl(
        *("label", "secret", f"sh.helm.release.v1.onewriter.v{revision}"),
        *("status=uninstalling", "--overwrite"),
        namespace=NAMESPACE,
    )
    done = run_hook(
        onewriter, "clean-up", tmp_path, f"--helm-revision={min(revision, 19)}", *arguments
    )
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    assert onewriter.get("deployment", "onewriter-operator")["spec"]["replicas"] == 0
    assert onewriter.get("statefulset", "onewriter-broker")["spec"]["replicas"] == 0
    assert "onewriter-operator" not in onewriter.names("lease")
    remaining = re.findall(r"^  (kubectl delete .*?)   #", done.output, re.MULTILINE)
    assert len(remaining) == 5, done.output
    for command in remaining:
        found = cluster.kubectl(*command.split()[1:], "--dry-run=server", check=False)
        assert found.returncode == 0, f"{command}: {found.stderr}"
        assert "xanchor" not in command or "shard-0" in found.stdout
        assert "pvc" not in command or "data-onewriter-valkey-0" in found.stdout
        assert "crd" not in command or "exclusivetopics" in found.stdout
    authority = onewriter.get("secret", "onewriter-ca")["data"]
    kept = cluster.get("exclusivetopic", "orders")["metadata"]
    assert kept["finalizers"] == ["example.org/theirs"], "ours goes, others' stays"
    onewriter.helm("uninstall", "onewriter", "--no-hooks")
    eventually(lambda: onewriter.names("statefulset") == [], "what the operator installed goes too")
    assert "exclusivetopics.onewriter.dev" in cluster.names("crd")
    assert "data-onewriter-valkey-0" in onewriter.names("pvc"), "the data"
    assert "shard-0" in onewriter.names("bucketanchor"), "who owned which bucket, since which epoch"
    # Install again, on the same data and the same objects.
    onewriter.install()
    assert onewriter.get("secret", "onewriter-ca")["data"] == authority, "sidecars know it"
    assert cluster.get("exclusivetopic", "orders")["metadata"]["uid"]
    # The foreign finalizer would keep the definition of a later uninstallation.
    cluster.kubectl(
        *("patch", "exclusivetopic", "orders", "--type=merge"),
        *("-p", '{"metadata": {"finalizers": null}}'),
        namespace="default",
    )


def test_where_definitions_go_the_objects_are_deleted_first(
    onewriter: Installation, tmp_path: Path
) -> None:
    cluster = onewriter.cluster
    topic = copy.deepcopy(TOPIC)
    topic["metadata"] = {
        "name": "gone",
        "namespace": "default",
        "finalizers": ["onewriter.dev/topic-cleanup"],
    }
    cluster.apply(topic)
    more = ["--confirm", "--delete-objects", f"--timeout-seconds={SECONDS_MAX}"]
    more.append("--deletion-share=0.02")  # there is no operator to wait for
    done = run_hook(onewriter, "clean-up", tmp_path, *more)
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    assert "deleting ExclusiveTopic default/gone" in done.output
    eventually(lambda: "gone" not in cluster.names("exclusivetopic"), "the object goes")


def test_anchors_outlive_an_uninstallation_that_deletes_the_definitions(
    onewriter: Installation,
) -> None:
    """The volume stays, and brokers refuse its data without the anchor that knows it."""
    # An uninstallation that was given up left the operator stopped.
    onewriter.cluster.kubectl(
        "scale", "deployment", "onewriter-operator", "--replicas=2", namespace=NAMESPACE
    )
    onewriter.install("crds.keep=false")
    onewriter.cluster.apply(ANCHOR)
    onewriter.helm("uninstall", "onewriter", "--no-hooks")
    cluster = onewriter.cluster
    eventually(lambda: "exclusivetopics.onewriter.dev" not in cluster.names("crd"), "gone")
    assert "shard-0" in onewriter.names("bucketanchor")
    onewriter.install()
    cluster.until_served("onewriter.dev", "exclusivetopics")  # the next test creates some
    assert "shard-0" in onewriter.names("bucketanchor")


def test_documented_command_removes_finalizers_in_every_namespace(
    onewriter: Installation,
) -> None:
    text = (ROOT / "docs" / "operator.md").read_text(encoding="utf-8")
    (command,) = (
        block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "finalizers" in block
    )
    onewriter.install()
    cluster = onewriter.cluster
    cluster.make_namespace("elsewhere")
    for namespace in ("default", "elsewhere"):
        topic = copy.deepcopy(TOPIC)
        topic["metadata"] = {
            "name": "stuck",
            "namespace": namespace,
            "finalizers": ["onewriter.dev/topic-cleanup"],
        }
        cluster.apply(topic)
    script = (
        f'kubectl() {{ {program("kubectl")} --kubeconfig={cluster.kubeconfig} "$@"; }}\n{command}'
    )
    done = commands.run(["bash", "-c", script], seconds=COMMAND_SECONDS)
    assert done.returncode == 0, done.stderr
    found = json.loads(cluster.kubectl("get", "xt", "-A", "-o", "json").stdout)
    assert not [each for each in found["items"] if each["metadata"].get("finalizers")]
    cluster.kubectl("delete", "xt", "stuck", namespace="elsewhere")
