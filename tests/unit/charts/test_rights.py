"""docs/rbac.md lists every right of every ServiceAccount of the chart, and no other."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
from tests.unit.charts.pipeline_charts import RUNNERS, TRIM, values
from tests.unit.charts.rendering import CLUSTER, EVERYTHING, ROOT, configuration, of_kind, rendered

from onewriter_operator.installation import objects

Json = dict[str, Any]

DOCUMENT = ROOT / "docs" / "rbac.md"
OPT_INS: Json = {"leaderServices": {"enabled": True}, "podDeletion": {"enabled": True}}


class Right(NamedTuple):
    """One verb on one resource. ``where``: installation, topics (where objects are declared), cluster."""

    account: str
    where: str
    resource: str
    names: str
    verb: str


def renderings() -> list[list[Json]]:
    everything = EVERYTHING | {"operator": EVERYTHING["operator"] | OPT_INS}
    return [
        rendered({}),
        rendered({"operator": OPT_INS}),
        rendered(everything),
        rendered(CLUSTER),
        *(rendered(values(runner, **TRIM)) for runner in RUNNERS),
    ]


def place(binding: Json, role: str) -> str:
    if role.endswith(("-token-review", "-nodes")):
        return "cluster"
    if binding["metadata"].get("namespace") == "system":
        return "installation"
    return "topics"


def rights(documents: list[Json]) -> set[Right]:
    """All rights that the bindings give."""
    roles = {
        (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace")): each
        for each in of_kind(documents, "Role", "ClusterRole")
    }
    found: set[Right] = set()
    for binding in of_kind(documents, "RoleBinding", "ClusterRoleBinding"):
        reference = binding["roleRef"]
        namespace = binding["metadata"].get("namespace")
        role = roles[reference["kind"], reference["name"], namespace]
        for subject in binding["subjects"]:
            assert subject["kind"] == "ServiceAccount"
            account = re.sub("^onewriter-", "", subject["name"])
            where = place(binding, reference["name"])
            for rule in role["rules"]:
                assert len(rule["apiGroups"]) == 1, "one group a rule, so that a row can name it"
                (group,) = rule["apiGroups"]
                names = sorted({named(each) for each in rule.get("resourceNames", ())})
                for resource in rule["resources"]:
                    title = f"{resource}.{group}" if group else resource
                    for verb in rule["verbs"]:
                        found.add(Right(account, where, title, ", ".join(names), verb))
    return found


def named(name: str) -> str:
    """A name as the document has it: the release is called onewriter there."""
    name = re.sub(r"^(sh\.helm\.release\.v1\.onewriter)\.v\d+$", r"\1.vN", name)
    return re.sub(r"^(onewriter-(?:broker|valkey))-\d+$", r"\1-N", name)


def rows() -> list[list[str]]:
    found = []
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip("| ").split(" | ")]
        if line.startswith("| `") and len(cells) == 6:
            found.append(cells)
    return found


def documented() -> set[Right]:
    found: set[Right] = set()
    for account, where, resource, names, verbs, _ in rows():
        for verb in verbs.split(", "):
            right = Right(account, where, resource, "" if names == "any" else names, verb)
            assert right not in found, f"{right} has two rows"
            found.add(right)
    return found


def test_every_right_has_a_row_and_every_row_is_a_right() -> None:
    given = set().union(*map(rights, renderings()))
    assert sorted(given - documented()) == [], "rights without a row in docs/rbac.md"
    assert sorted(documented() - given) == [], "rows in docs/rbac.md that are no right"


def test_every_row_has_its_reason() -> None:
    for row in rows():
        assert len(row[-1].split()) >= 3, row


def test_by_default_the_operator_writes_no_service_where_topics_are() -> None:
    written = {
        right
        for right in rights(rendered({}))
        if right.account == "operator"
        and right.where == "topics"
        and right.verb not in {"get", "list", "watch"}
    }
    assert {right.resource for right in written} == {
        "exclusivetopics.onewriter.dev",
        "producerclaims.onewriter.dev",
        "exclusivetopics/status.onewriter.dev",
        "producerclaims/status.onewriter.dev",
        "exclusivetopics/finalizers.onewriter.dev",
        "producerclaims/finalizers.onewriter.dev",
        "pods/eviction",
        "events.events.k8s.io",
    }


@pytest.mark.parametrize("value", ["leaderServices", "podDeletion"])
def test_a_right_can_be_opted_into_for_some_namespaces(value: str) -> None:
    documents = rendered({"operator": {value: {"enabled": True, "namespaces": ["shop", "bank"]}}})
    suffix = {"leaderServices": "leader-services", "podDeletion": "pod-deletion"}[value]
    name = f"onewriter-system-{suffix}"
    assert {
        each["metadata"]["namespace"]
        for each in of_kind(documents, "Role")
        if each["metadata"]["name"] == name
    } == {"shop", "bank"}
    assert name not in {each["metadata"]["name"] for each in of_kind(documents, "ClusterRole")}


def test_no_pod_mounts_the_key_of_the_authority() -> None:
    for documents in renderings():
        text = "".join(
            str(each) for each in of_kind(documents, "Deployment", "Job", "Pod", "CronJob")
        )
        assert "onewriter-ca'" not in text


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_policy_allows_every_secret_that_the_operator_mounts(values: Json) -> None:
    documents = rendered(values)
    policy = named_policy(documents, "onewriter-system-workloads")
    (rule,) = [
        each["expression"]
        for each in policy["spec"]["validations"]
        if "variables.secrets.all" in each["expression"]
    ]
    exact = set(re.findall(r"'([^']+)'", rule.partition("||")[0]))
    prefixes = tuple(re.findall(r"startsWith\('([^']+)'\)", rule))
    for each in of_kind(objects(configuration(documents)), "StatefulSet"):
        for volume in each["spec"]["template"]["spec"]["volumes"]:
            sources = volume.get("projected", {}).get("sources", ())
            mounted = [source["secret"]["name"] for source in sources if "secret" in source]
            mounted += [volume["secret"]["secretName"]] if "secret" in volume else []
            for name in mounted:
                assert name in exact or name.startswith(prefixes), name


def test_exceptions_are_in_the_policy_and_not_in_parameters() -> None:
    # Where the last binding with ConfigMaps as parameters was deleted once (a reinstallation is enough), the API
    # server reads none again until it is restarted: it refuses everything.
    exceptions = [
        {"namespace": "billing", "tenants": ["shop"]},
        {"namespace": "billing", "tenants": ["bank"]},
    ]
    documents = rendered({"tenancy": {"allow": exceptions}})
    for each in of_kind(documents, "ValidatingAdmissionPolicy"):
        assert "paramKind" not in each["spec"]
    for each in of_kind(documents, "ValidatingAdmissionPolicyBinding"):
        assert "paramRef" not in each["spec"]
    variables = named_policy(documents, "onewriter-system-tenancy")["spec"]["variables"]
    answer = {each["name"]: each["expression"] for each in variables}
    assert answer["allowed"] == "['billing/shop', 'billing/bank']"


def named_policy(documents: list[Json], name: str) -> Json:
    policies = of_kind(documents, "ValidatingAdmissionPolicy")
    (found,) = [each for each in policies if each["metadata"]["name"] == name]
    return found
