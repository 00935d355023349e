"""The chart's admission policies in a real API server: topics by tenant, and the operator's writes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import commands
from tests.cluster.binaries import program
from tests.cluster.control_plane import COMMAND_SECONDS, ControlPlane

from onewriter_operator.configuration import Configuration
from onewriter_operator.installation import created_once, objects

Json = dict[str, Any]

CHART = Path(__file__).resolve().parents[2] / "charts" / "onewriter"
NAMESPACE = "system"
OPERATOR = "system:serviceaccount:system:onewriter-operator"
EDITOR = "editor"


class Installed:
    """The chart in an API server; an editor of the namespaces ``shop``, ``rival`` and ``default``."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster = cluster
        self.install()
        for namespace in ("shop", "rival", "default"):
            for role in ("view", "edit"):  # no controller aggregates roles here
                binding = ("create", "rolebinding", f"{EDITOR}-{role}", f"--user={EDITOR}")
                name = f"--clusterrole=onewriter-{NAMESPACE}-{role}"
                cluster.kubectl(*binding, name, namespace=namespace)
            cluster.until_allowed(
                EDITOR, "create", "exclusivetopics.onewriter.dev", namespace=namespace
            )

    def install(self, *values: str) -> None:
        cluster = self.cluster
        command = [*cluster.enter(), str(program("helm")), f"--kubeconfig={cluster.kubeconfig}"]
        more = [
            f"--namespace={NAMESPACE}",
            "--no-hooks",
            "--reset-values",
            *(f"--set={each}" for each in values),
        ]
        done = commands.run(
            [*command, "upgrade", "--install", "onewriter", str(CHART), *more],
            seconds=COMMAND_SECONDS,
        )
        assert done.returncode == 0, done.stderr

    def as_user(self, user: str, verb: str, document: Json, *more: str) -> str:
        """Return the API server's refusal of a dry run; empty if it is accepted. Nothing is stored."""
        options = [verb, "-f", "-", "--dry-run=server", f"--as={user}", *more]
        done = self.cluster.kubectl(*options, stdin=yaml.safe_dump(document), check=False)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    def declared(self, namespace: str, topic: str = "") -> str:
        """Let an editor declare a topic there; return the refusal, empty if it is accepted."""
        spec = {"topic": topic} if topic else {}
        return self.as_user(EDITOR, "create", document(namespace, **spec))


def document(namespace: str, name: str = "heir", **spec: Any) -> Json:
    return {
        "apiVersion": "onewriter.dev/v1alpha1",
        "kind": "ExclusiveTopic",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    with ControlPlane(tmp_path_factory.mktemp("policies"), workloads=True) as cluster:
        for namespace in (NAMESPACE, "shop", "rival", "public"):
            cluster.make_namespace(namespace)
        found = Installed(cluster)
        cluster.until(
            lambda: (
                "does not belong" in found.declared("rival", "persistent://shop/default/ledger")
            ),
            "the policy counts a moment after it was stored",
        )
        yield found


@pytest.mark.parametrize(
    ("namespace", "topic"),
    [
        ("shop", ""),
        ("shop", "persistent://shop/default/ledger"),
        ("shop", "persistent://shop/elsewhere/ledger"),
        ("default", ""),
        ("default", "persistent://public/default/orders"),
        ("default", "persistent://default/default/orders"),
    ],
)
def test_topics_of_ones_own_tenant_are_taken(
    installed: Installed, namespace: str, topic: str
) -> None:
    assert installed.declared(namespace, topic) == ""


@pytest.mark.parametrize(
    ("namespace", "topic"),
    [
        ("rival", "persistent://shop/default/ledger"),
        ("rival", "persistent://public/default/orders"),
        ("rival", "persistent://rival2/default/orders"),
        ("default", "persistent://shop/default/ledger"),
    ],
)
def test_topics_of_others_are_refused_with_what_to_do(
    installed: Installed, namespace: str, topic: str
) -> None:
    answer = installed.declared(namespace, topic)
    assert f"does not belong to namespace {namespace}" in answer
    assert "tenancy.allow" in answer


def test_an_object_that_names_no_topic_cannot_be_given_a_foreign_one(installed: Installed) -> None:
    cluster, bare = installed.cluster, document("rival", "bare")
    del bare["spec"]
    cluster.apply(bare)
    bare["spec"] = {"topic": "persistent://shop/default/ledger"}
    answer = installed.as_user(EDITOR, "replace", bare)
    assert answer, "it was given another tenant's topic"
    cluster.kubectl("delete", "xt", "bare", namespace="rival")


def test_the_namespace_public_does_not_have_the_tenant_public(installed: Installed) -> None:
    answer = installed.as_user(
        "system:admin", "create", document("public"), "--as-group=system:masters"
    )
    assert "tenant public does not belong to namespace public" in answer


def test_exceptions_are_the_administrators(installed: Installed) -> None:
    installed.install("tenancy.allow[0].namespace=rival", "tenancy.allow[0].tenants={bank,shop}")
    installed.cluster.until(
        lambda: installed.declared("rival", "persistent://shop/default/ledger") == "",
        "the exception counts",
    )
    assert installed.declared("rival", "persistent://public/default/x")
    assert installed.declared("default", "persistent://shop/default/x")
    installed.install()
    installed.cluster.until(
        lambda: (
            "does not belong" in installed.declared("rival", "persistent://shop/default/ledger")
        ),
        "the exception ends",
    )


def test_objects_declared_before_the_policy_can_be_changed_and_deleted(
    installed: Installed,
) -> None:
    cluster = installed.cluster
    installed.install("tenancy.enforced=false")
    old = document("rival", "old", topic="persistent://shop/default/old")
    old["metadata"]["finalizers"] = ["onewriter.dev/topic-cleanup"]
    cluster.until(lambda: installed.as_user(EDITOR, "create", old) == "", "no policy counts")
    cluster.apply(old)
    installed.install()
    cluster.until(
        lambda: (
            "does not belong" in installed.declared("rival", "persistent://shop/default/ledger")
        ),
        "it counts",
    )
    changed = document("rival", "old", topic="persistent://shop/default/old", partitions=0)
    changed["metadata"]["annotations"] = {"note": "changed"}
    assert installed.as_user(EDITOR, "apply", changed) == ""
    cluster.kubectl("delete", "xt", "old", "--wait=false", namespace="rival")
    patch = '[{"op": "remove", "path": "/metadata/finalizers"}]'
    cluster.kubectl("patch", "xt", "old", "--type=json", f"--patch={patch}", namespace="rival")


# ------------------------------------------------------------ limits of the operator


def service(namespace: str, **labels: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "leader", "namespace": namespace, "labels": labels},
        "spec": {"ports": [{"port": 80}]},
    }


APPLIED = ("--server-side", "--field-manager=onewriter-operator", "--force-conflicts")
OPT_IN = "operator.leaderServices.enabled=true"
OURS = {"app.kubernetes.io/managed-by": "onewriter-operator"}


@pytest.fixture(scope="module")
def opted_in(installed: Installed) -> Installed:
    installed.install(OPT_IN)
    installed.cluster.until_allowed(OPERATOR, "create", "services", namespace="shop")
    installed.cluster.until(
        lambda: (
            "writes only objects labelled" in installed.as_user(OPERATOR, "create", service("shop"))
        ),
        "a changed policy counts a moment after it was stored",
    )
    return installed


def test_the_operator_makes_and_changes_its_own_objects_alone(opted_in: Installed) -> None:
    assert opted_in.as_user(OPERATOR, "create", service("shop", **OURS)) == ""
    assert "writes only objects labelled" in opted_in.as_user(OPERATOR, "create", service("shop"))
    opted_in.cluster.apply(service("shop"))
    # An attacker who has taken over the operator could redirect the traffic of any Service.
    answer = opted_in.as_user(OPERATOR, "apply", service("shop", **OURS), *APPLIED)
    assert "changes and deletes only objects labelled" in answer
    done = opted_in.cluster.kubectl(
        *("delete", "service", "leader", "--dry-run=server", f"--as={OPERATOR}"),
        namespace="shop",
        check=False,
    )
    assert "changes and deletes only objects labelled" in done.stderr
    opted_in.cluster.kubectl("delete", "service", "leader", namespace="shop")


def installs(installed: Installed) -> tuple[list[Json], list[Json]]:
    """Return what the operator installs: objects to create once, and objects to apply repeatedly."""
    found = installed.cluster.get("configmap", "onewriter-config", namespace=NAMESPACE)
    document = yaml.safe_load(found["data"]["configuration.yaml"])
    configuration = Configuration.from_document(document)
    return created_once(configuration, found), objects(configuration, found)


INSTALLATIONS = {
    "by default": (),
    "with Secrets that are given": (
        "valkey.passwordSecret.name=given-password",
        "brokers.tls.secretName=given-certificate",
        "image.pullSecrets={given-pull-secret}",
    ),
    "with a store elsewhere": (
        "externalStore.url=rediss://store.example:6379/0",
        "externalStore.passwordSecret.name=shared",
        "externalStore.tls.caSecretName=store-authority",
        "externalStore.tls.clientSecretName=broker-at-store",
    ),
    "with tls to the store": (
        "store.tls.secretName=store-certificate",
        "valkey.image=valkey/valkey:9",
    ),
    "with as little as there can be": (
        "brokers.replicas=1",
        "brokers.tls.enabled=false",
        "brokers.settings.minimumDurability=None",
        "valkey.storage.size=",
        "networkPolicies.enabled=false",
    ),
}


def refusals(installed: Installed) -> str:
    """Return the API server's refusals of all objects that the operator installs; empty if it accepts all."""
    once, always = installs(installed)
    lines = [installed.as_user(OPERATOR, "create", each) for each in once]
    lines += [installed.as_user(OPERATOR, "apply", each, *APPLIED) for each in always]
    return "".join(lines)


@pytest.mark.parametrize("installation", INSTALLATIONS)
def test_the_operator_may_install_what_it_installs(opted_in: Installed, installation: str) -> None:
    opted_in.install(OPT_IN, *INSTALLATIONS[installation])
    try:
        _, always = installs(opted_in)
        assert [each["kind"] for each in always].count("StatefulSet") >= 1
        # A changed policy takes effect a moment later.
        opted_in.cluster.until(lambda: refusals(opted_in) == "", "everything is taken")
    finally:
        opted_in.install(OPT_IN)


def test_the_operator_may_change_what_it_installed(opted_in: Installed) -> None:
    _, always = installs(opted_in)
    for each in always:
        about = {**each["metadata"], "annotations": {"note": "older"}}
        opted_in.cluster.apply({**each, "metadata": about})
    try:
        # The policies that an earlier test changed take effect a moment later.
        opted_in.cluster.until(lambda: refusals(opted_in) == "", "everything is taken")
    finally:
        for each in always:
            name = each["metadata"]["name"]
            opted_in.cluster.kubectl("delete", each["kind"], name, namespace=NAMESPACE)


def test_the_operator_restores_the_label_of_an_installed_object(opted_in: Installed) -> None:
    """Another program removed the label that the policy looks at. The owner shows whose object it is."""
    _, always = installs(opted_in)
    for each in always:
        labels = dict(each["metadata"]["labels"])
        assert labels.pop("app.kubernetes.io/managed-by") == "onewriter-operator"
        opted_in.cluster.apply({**each, "metadata": {**each["metadata"], "labels": labels}})
    try:
        # The policies that an earlier test changed take effect a moment later.
        opted_in.cluster.until(lambda: refusals(opted_in) == "", "everything is taken")
        unlabelled = opted_in.as_user(
            *(
                OPERATOR,
                "apply",
                {**always[0], "metadata": {**always[0]["metadata"], "labels": {}}},
            ),
            *APPLIED,
        )
        assert "writes only objects labelled" in unlabelled
    finally:
        for each in always:
            name = each["metadata"]["name"]
            opted_in.cluster.kubectl("delete", each["kind"], name, namespace=NAMESPACE)


TOPIC_OWNER: Json = {
    "apiVersion": "onewriter.dev/v1alpha1",
    "kind": "ExclusiveTopic",
    "name": "heir",
}
CONFIG_OWNER: Json = {"apiVersion": "v1", "kind": "ConfigMap", "name": "onewriter-config"}


@pytest.fixture(scope="module")
def owners(opted_in: Installed) -> Iterator[dict[str, str]]:
    """The uids of a topic and of a ConfigMap in ``shop``: what owns nothing that exists is collected."""
    cluster = opted_in.cluster
    about = {"name": "onewriter-config", "namespace": "shop"}
    cluster.apply(document("shop"), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about})
    kinds = {"ExclusiveTopic": "heir", "ConfigMap": "onewriter-config"}
    yield {
        kind: cluster.get(kind, name, namespace="shop")["metadata"]["uid"]
        for kind, name in kinds.items()
    }
    for kind, name in kinds.items():
        cluster.kubectl("delete", kind, name, namespace="shop")


@pytest.mark.parametrize(
    ("owner", "is_ours"),
    [
        (TOPIC_OWNER | {"controller": True}, True),
        (TOPIC_OWNER, False),
        (CONFIG_OWNER, False),
    ],
    ids=["its topic", "a topic that does not control it", "the installation, in another namespace"],
)
def test_the_operator_restores_the_label_of_a_leader_service_by_its_owner(
    opted_in: Installed, owners: dict[str, str], owner: Json, is_ours: bool
) -> None:
    wanted = service("shop", **OURS)
    wanted["metadata"]["ownerReferences"] = [owner | {"uid": owners[owner["kind"]]}]
    stripped = copy.deepcopy(wanted)
    del stripped["metadata"]["labels"]
    opted_in.cluster.apply(stripped)
    try:
        answer = opted_in.as_user(OPERATOR, "apply", wanted, *APPLIED)
        assert answer == "" if is_ours else "changes and deletes only objects labelled" in answer
    finally:
        opted_in.cluster.kubectl("delete", "service", "leader", namespace="shop")


def brokers(opted_in: Installed) -> Json:
    (found,) = [
        each
        for each in installs(opted_in)[1]
        if each["kind"] == "StatefulSet" and each["metadata"]["name"].endswith("-broker")
    ]
    return copy.deepcopy(found)


def test_the_operator_mounts_no_other_secret(opted_in: Installed) -> None:
    def volume(**source: Any) -> str:
        found = brokers(opted_in)
        pod = found["spec"]["template"]["spec"]
        pod["volumes"] = [*pod["volumes"], {"name": "stolen", **source}]
        return opted_in.as_user(OPERATOR, "create", found)

    for name in ("onewriter-ca", "onewriter-webhook-tls", "somebody-elses"):
        assert "mounts the Secrets of brokers and store" in volume(secret={"secretName": name})
    projected = {"sources": [{"secret": {"name": "onewriter-ca"}}]}
    assert "mounts the Secrets of brokers and store" in volume(projected=projected)
    assert "and nothing else" in volume(hostPath={"path": "/etc"})
    assert volume(secret={"secretName": "onewriter-broker-tls"}) == ""
    found = brokers(opted_in)
    reference = {"secretKeyRef": {"name": "onewriter-ca", "key": "ca.key"}}
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container["env"] = [*container["env"], {"name": "KEY", "valueFrom": reference}]
    assert "puts no Secret into variables" in opted_in.as_user(OPERATOR, "create", found)


def test_the_operator_runs_no_other_workload_and_under_no_other_account(
    opted_in: Installed,
) -> None:
    found = brokers(opted_in)
    found["metadata"]["name"] = "miner"
    assert "no other StatefulSet" in opted_in.as_user(OPERATOR, "create", found)
    found = brokers(opted_in)
    found["spec"]["template"]["spec"]["serviceAccountName"] = "onewriter-operator"
    assert "brokers' account" in opted_in.as_user(OPERATOR, "create", found)


def test_without_the_opt_in_it_makes_no_service_where_topics_are(opted_in: Installed) -> None:
    opted_in.install()
    opted_in.cluster.until(
        lambda: "orbidden" in opted_in.as_user(OPERATOR, "create", service("shop", **OURS)),
        "the right ends",
    )
    assert "orbidden" in opted_in.as_user(OPERATOR, "create", service("kube-system", **OURS))
