"""The chart: what Helm makes of it, and that it stays in step with models, rights and objects."""

from __future__ import annotations

import base64
import os
import tomllib
from datetime import UTC, datetime, timedelta
from typing import Any

import helm_python
import pydantic
import pytest
import yaml
from charts.generator.__main__ import files
from charts.generator.values import Values
from cryptography import x509
from tests.unit.charts.rendering import (
    ALL,
    CHART,
    EVERYTHING,
    LEAST,
    ROOT,
    TLS,
    as_model,
    chart,
    configuration,
    named,
    of_kind,
    pod_templates,
    rendered,
    stable,
)

from onewriter_operator.configuration import MANAGED_SETTINGS
from onewriter_operator.installation import created_once, objects

Json = dict[str, Any]

GOLDEN = ROOT / "tests" / "unit" / "charts" / "golden"


# ------------------------------------------------------------ in step


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_generated_files_match_the_models(path: Any) -> None:
    assert path.read_text(encoding="utf-8") == files()[path], "run python -m charts.generator"


def test_values_are_the_models_defaults() -> None:
    written = yaml.safe_load((CHART / "values.yaml").read_text())
    assert as_model(written) == Values()


def test_the_chart_is_of_the_projects_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == project["version"]
    assert about["kubeVersion"].startswith(">=1.33")


def test_the_chart_passes_helm_lint() -> None:
    for values in ALL.values():
        report = helm_python.lint(
            CHART, values, strict=True, namespace="system", kube_version="v1.36.3"
        )
        assert report["errors"] == []


@pytest.mark.parametrize("case", ALL)
def test_the_rendered_chart_is_unchanged(case: str) -> None:
    path = GOLDEN / f"{case}.yaml"
    documents = [each for each in rendered(ALL[case]) if each["kind"] != "CustomResourceDefinition"]
    text = stable(documents)
    if os.environ.get("ONEWRITER_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text(), "ONEWRITER_GOLDEN=write pytest tests/unit/charts writes it"


# ------------------------------------------------------------ values

WRONG: dict[str, Json] = {
    "an unknown section": {"broker": {}},
    "an unknown value": {"brokers": {"replicaz": 3}},
    "a text for a number": {"brokers": {"replicas": "3"}},
    "no broker": {"brokers": {"replicas": 0}},
    "an unknown setting": {"brokers": {"settings": {"silentAfter": 1}}},
    "a setting of the wrong type": {"brokers": {"settings": {"rollBytes": "many"}}},
    "an unknown word": {"image": {"pullPolicy": "Sometimes"}},
    "a digest that is none": {"image": {"digest": "sha256:1"}},
    "an amount that is none": {"valkey": {"resources": {"limits": {"memory": "much"}}}},
    "an unknown source": {"certificates": {"brokers": "Elsewhere"}},
    "a long wait of every pod": {"webhook": {"timeoutSeconds": 30}},
    "a namespace that cannot be": {"operator": {"namespaces": ["A_B"]}},
    "two shards": {"store": {"shards": 2}},
    "a cluster without replicas": {"store": {"shards": 3, "replicas": 0}},
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_refused(case: str) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        chart().validate_schema(WRONG[case])


@pytest.mark.parametrize("case", ALL)
def test_right_values_are_taken(case: str) -> None:
    chart().validate_schema(ALL[case])
    as_model(ALL[case])


def test_a_parent_chart_may_hand_down_values() -> None:
    chart().validate_schema({"global": {"anything": 1}})


def test_models_reject_values_that_the_chart_cannot_check() -> None:
    with pytest.raises(pydantic.ValidationError, match="without a volume"):
        as_model({"valkey": {"storage": {"size": ""}}})


def test_every_setting_of_the_brokers_is_either_offered_or_managed() -> None:
    from charts.generator.schema import settings

    from onewriter_broker.settings import Settings

    assert len(settings()) + len(MANAGED_SETTINGS & _camel(Settings.model_fields)) == len(
        Settings.model_fields
    )
    assert {"silentAfterSeconds", "minimumDurability", "stopSeconds"} <= set(settings())


def _camel(names: Any) -> set[str]:
    from pydantic.alias_generators import to_camel

    return {to_camel(name) for name in names}


# ------------------------------------------------------------ what the operator reads


@pytest.mark.parametrize("case", ALL)
def test_the_operator_can_read_its_configuration(case: str) -> None:
    found = configuration(rendered(ALL[case]))
    values = as_model(ALL[case])
    assert found.brokers.replicas == values.brokers.replicas
    assert found.valkey == values.valkey
    assert found.store == values.store
    assert found.operator.namespaces == values.operator.namespaces
    assert found.namespace == "system"


def test_an_image_by_digest_applies_to_all_parts() -> None:
    documents = rendered(EVERYTHING)
    reference = f"mirror/onewriter@sha256:{'0' * 64}"
    assert configuration(documents).image.reference == reference
    for template in pod_templates(documents):
        assert [each["image"] for each in template["spec"]["containers"]] == [reference]


@pytest.mark.parametrize("case", ALL)
def test_pods_run_as_an_unprivileged_user(case: str) -> None:
    for template in pod_templates(rendered(ALL[case])):
        pod = template["spec"]
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in pod["containers"]:
            assert each["securityContext"]["readOnlyRootFilesystem"] is True
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert each["resources"]["limits"]["memory"]


def test_a_changed_configuration_replaces_the_operators_pods() -> None:
    def noted(values: Json) -> Any:
        template = named(rendered(values), "Deployment", "onewriter-operator")["spec"]["template"]
        return template["metadata"]["annotations"]["onewriter.dev/configuration"]

    assert noted({}) == noted({"operator": {"replicas": 3}})
    assert noted({}) != noted({"brokers": {"replicas": 4}})


def test_another_name_names_everything() -> None:
    documents = rendered({"fullnameOverride": "queue"}, name="anything")
    for each in documents:
        name = each["metadata"]["name"]
        if each["kind"] != "CustomResourceDefinition":
            assert name.startswith("queue"), name


# ------------------------------------------------------------ rights


def rules(documents: list[Json], kind: str, name: str) -> list[Json]:
    found: list[Json] = named(documents, kind, name)["rules"]
    return found


def allows(granted: list[Json], group: str, resource: str, verb: str, name: str = "") -> bool:
    return any(
        group in rule["apiGroups"]
        and resource in rule["resources"]
        and verb in rule["verbs"]
        and (not rule.get("resourceNames") or name in rule["resourceNames"])
        for rule in granted
    )


PLURALS = {
    "ConfigMap": ("", "configmaps"),
    "Secret": ("", "secrets"),
    "Service": ("", "services"),
    "StatefulSet": ("apps", "statefulsets"),
    "PodDisruptionBudget": ("policy", "poddisruptionbudgets"),
    "NetworkPolicy": ("networking.k8s.io", "networkpolicies"),
}


@pytest.mark.parametrize("case", ["defaults", "everything", "cluster"])
def test_the_operator_may_install_what_it_installs(case: str) -> None:
    documents = rendered(ALL[case])
    wanted = configuration(documents)
    granted = rules(documents, "Role", "onewriter-operator")
    for each in objects(wanted):
        group, plural = PLURALS[each["kind"]]
        name = each["metadata"]["name"]
        for verb in ("create", "patch", "get"):
            assert allows(granted, group, plural, verb, name), f"{verb} {plural} {name}"
    for each in created_once(wanted):
        assert allows(granted, "", "secrets", "create")
        assert allows(granted, "", "secrets", "get", each["metadata"]["name"])


@pytest.mark.parametrize("case", ALL)
def test_no_role_has_all_rights_or_reads_secrets(case: str) -> None:
    for role in of_kind(rendered(ALL[case]), "Role", "ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            if "secrets" in rule["resources"] and rule["verbs"] != ["create"]:
                # The API server allows list and watch of a name only for that one Secret.
                assert set(rule["verbs"]) <= {"get", "list", "watch"}
                assert rule["resourceNames"]
                for name in rule["resourceNames"]:
                    # The clean-up asks whether Helm uninstalls the release.
                    is_helms = name.startswith("sh.helm.release.v1.onewriter.v")
                    is_cleaning = role["metadata"]["name"] == "onewriter-clean-up"
                    is_made_once = name in {
                        "onewriter-valkey-password",
                        "onewriter-valkey-cluster",
                        "onewriter-metrics",
                    }
                    assert is_made_once or (is_helms and is_cleaning)


def test_brokers_may_write_their_anchor_and_have_tokens_judged() -> None:
    documents = rendered()
    found = rules(documents, "Role", "onewriter-broker")
    assert {each for rule in found for each in rule["resources"]} == {"bucketanchors"}
    (review,) = rules(documents, "ClusterRole", "onewriter-system-token-review")
    assert (review["resources"], review["verbs"]) == (["tokenreviews"], ["create"])
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in of_kind(documents, kind):
            names = {subject["name"] for subject in binding["subjects"]}
            if "onewriter-broker" in names:
                assert binding["roleRef"]["name"] in {
                    "onewriter-broker",
                    "onewriter-system-token-review",
                }


def test_some_namespaces_alone() -> None:
    documents = rendered(EVERYTHING)
    cluster_wide = {
        each["metadata"]["name"]
        for each in of_kind(documents, "ClusterRole")
        if "aggregate" not in str(each["metadata"]["labels"])
    }
    assert cluster_wide == {"onewriter-system-token-review", "onewriter-system-nodes"}
    places = {
        each["metadata"]["namespace"]
        for each in of_kind(documents, "Role")
        if each["metadata"]["name"] == "onewriter-system-topics"
    }
    assert places == {"shop", "bank"}


def test_editors_of_a_namespace_declare_topics_and_no_user_writes_anchors() -> None:
    documents = rendered()
    edit = named(documents, "ClusterRole", "onewriter-system-edit")
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert allows(edit["rules"], "onewriter.dev", "exclusivetopics", "create")
    assert not allows(edit["rules"], "onewriter.dev", "bucketanchors", "update")
    view = named(documents, "ClusterRole", "onewriter-system-view")
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_the_pods_accounts_exist() -> None:
    for case in ("defaults", "everything"):
        documents = rendered(ALL[case])
        accounts = {each["metadata"]["name"] for each in of_kind(documents, "ServiceAccount")}
        used = {template["spec"]["serviceAccountName"] for template in pod_templates(documents)}
        installed = of_kind(objects(configuration(documents)), "StatefulSet")
        used |= {
            each["spec"]["template"]["spec"].get("serviceAccountName", "onewriter-broker")
            for each in installed
        }
        assert used <= accounts


def test_every_binding_has_its_role() -> None:
    for values in ALL.values():
        documents = rendered(values)
        for kind in ("RoleBinding", "ClusterRoleBinding"):
            for each in of_kind(documents, kind):
                reference = each["roleRef"]
                assert any(
                    role["metadata"]["name"] == reference["name"]
                    for role in of_kind(documents, reference["kind"])
                )


# ------------------------------------------------------------ definitions


KEPT = {
    "helm.sh/resource-policy": "keep",
    "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
    "kustomize.toolkit.fluxcd.io/prune": "disabled",
}
"""Annotations by which Helm, Argo CD and Flux leave an object alone."""


def test_definitions_stay_unless_an_administrator_removes_them() -> None:
    """That of BucketAnchor always stays: without anchors, brokers refuse the data in the volume."""
    for keep in (True, False):
        found = of_kind(rendered({"crds": {"keep": keep}}), "CustomResourceDefinition")
        assert "bucketanchors.onewriter.dev" in {each["metadata"]["name"] for each in found}
        for each in found:
            is_kept = keep or each["metadata"]["name"] == "bucketanchors.onewriter.dev"
            assert each["metadata"].get("annotations", {}) == (KEPT if is_kept else {})
    assert of_kind(rendered(LEAST), "CustomResourceDefinition") == []


def test_uninstalling_prints_the_report_of_the_clean_up() -> None:
    job = named(rendered(), "Job", "onewriter-clean-up")
    policy = job["metadata"]["annotations"]["helm.sh/hook-output-log-policy"]
    assert policy == "hook-succeeded,hook-failed"


@pytest.mark.parametrize("path", sorted((ROOT / "crds").glob("*.yaml")), ids=lambda path: path.stem)
def test_definitions_are_those_of_the_crds_directory(path: Any) -> None:
    wanted = yaml.safe_load(path.read_text())
    found = named(rendered(), "CustomResourceDefinition", wanted["metadata"]["name"])
    assert found["spec"] == wanted["spec"]


def test_where_definitions_go_the_objects_go_first() -> None:
    def command(values: Json) -> Any:
        job = named(rendered(values), "Job", "onewriter-clean-up")
        return job["spec"]["template"]["spec"]["containers"][0]["command"]

    assert "--delete-objects" not in command({})
    assert "--delete-objects" in command({"crds": {"keep": False}})


# ------------------------------------------------------------ certificates


def certificate(secret: Json, key: str = "tls.crt") -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(secret["data"][key]))


def names_of(found: x509.Certificate) -> set[str]:
    extension = found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return set(extension.value.get_values_for_type(x509.DNSName))


def test_self_signed_certificates_are_of_one_authority_that_the_webhook_knows() -> None:
    documents = rendered()
    secrets = of_kind(documents, "Secret")
    authority = certificate(named(secrets, "Secret", "onewriter-ca"), "ca.crt")
    for name in ("onewriter-webhook-tls", "onewriter-broker-tls"):
        secret = named(secrets, "Secret", name)
        leaf = certificate(secret)
        leaf.verify_directly_issued_by(authority)
        assert certificate(secret, "ca.crt") == authority
        assert "ca.key" not in secret["data"], "brokers must not sign for others"
        assert leaf.not_valid_after_utc > datetime.now(UTC) + timedelta(days=3600)
    (webhook,) = of_kind(documents, "MutatingWebhookConfiguration")[0]["webhooks"]
    bundle = base64.b64decode(webhook["clientConfig"]["caBundle"])
    assert x509.load_pem_x509_certificate(bundle) == authority


def test_certificates_are_made_out_to_the_names_that_are_used() -> None:
    documents = rendered()
    webhook = names_of(certificate(named(documents, "Secret", "onewriter-webhook-tls")))
    (hook,) = of_kind(documents, "MutatingWebhookConfiguration")[0]["webhooks"]
    service = hook["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" in webhook
    brokers = names_of(certificate(named(documents, "Secret", "onewriter-broker-tls")))
    assert "onewriter-broker.system.svc.cluster.local" in brokers
    assert "*.onewriter-broker-pods.system.svc.cluster.local" in brokers, "what look-ups answer"


def test_cert_manager_may_make_them() -> None:
    documents = rendered(EVERYTHING)
    assert of_kind(documents, "Secret") == []
    found = {each["metadata"]["name"]: each for each in of_kind(documents, "Certificate")}
    assert found["onewriter-brokers"]["spec"]["secretName"] == "onewriter-broker-tls"
    (webhook,) = of_kind(documents, "MutatingWebhookConfiguration")
    noted = webhook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert noted == "system/onewriter-webhook"
    assert noted.partition("/")[2] in found
    given = {"certificates": {**EVERYTHING["certificates"], "issuerRef": {"name": "company"}}}
    documents = rendered(given)
    assert of_kind(documents, "Issuer") == []
    for each in of_kind(documents, "Certificate"):
        assert each["spec"]["issuerRef"]["name"] == "company"


def test_given_certificates_are_used_as_they_are() -> None:
    documents = rendered(
        {
            "certificates": {"webhook": "Secret", "brokers": "Secret"},
            "webhook": {"secretName": "mine", "caBundle": "PEM"},
            "brokers": {"tls": {"secretName": "brokers"}},
        }
    )
    assert of_kind(documents, "Secret", "Certificate") == []
    (webhook,) = of_kind(documents, "MutatingWebhookConfiguration")[0]["webhooks"]
    assert base64.b64decode(webhook["clientConfig"]["caBundle"]) == b"PEM"
    operator = named(documents, "Deployment", "onewriter-operator")["spec"]["template"]["spec"]
    secrets = [each["secret"]["secretName"] for each in operator["volumes"] if "secret" in each]
    assert secrets == ["onewriter-metrics", "mine", "brokers"]
    assert configuration(documents).brokers.tls.secret_name in secrets


def test_the_operator_sees_the_brokers_authority_and_not_their_key() -> None:
    pod = named(rendered(), "Deployment", "onewriter-operator")["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "broker-ca"]
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert configuration(rendered()).operator.broker_ca_file == "/etc/onewriter/broker-ca/ca.crt"
    assert configuration(rendered(LEAST)).operator.broker_ca_file == ""


def test_the_operator_sees_the_stores_authority_and_not_its_key() -> None:
    pod = named(rendered(TLS), "Deployment", "onewriter-operator")["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "store-ca"]
    assert volume["secret"]["secretName"] == "store-certificate"
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "store-ca"]
    found = configuration(rendered(TLS))
    assert found.operator.store_ca_file == f"{mount['mountPath']}/ca.crt"
    assert found.store.tls.secret_name == "store-certificate"  # noqa: S105 - a name
    alone = {**TLS, "store": {"tls": TLS["store"]["tls"]}}
    assert configuration(rendered(alone)).store.tls.secret_name == "store-certificate"  # noqa: S105 - a name
    assert configuration(rendered()).operator.store_ca_file == ""


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"valkey": {"image": ""}}, "store.tls needs valkey.image: the server in the image of all"),
        ({"externalStore": {"url": "rediss://a"}}, "store.tls is for the installed store"),
        ({"externalStore": {"sentinels": ["a:1"]}}, "store.tls is for the installed store"),
    ],
)
def test_tls_is_refused_where_it_would_not_work(more: Json, reason: str) -> None:
    one = {**TLS, "store": {"tls": TLS["store"]["tls"]}}
    with pytest.raises(helm_python.HelmRenderError, match=reason):
        rendered({**one, **more})


# ------------------------------------------------------------ webhook, network, hooks


def test_only_pods_that_ask_for_it_are_shown_to_the_webhook() -> None:
    (webhook,) = of_kind(rendered(EVERYTHING), "MutatingWebhookConfiguration")[0]["webhooks"]
    assert webhook["objectSelector"] == {"matchLabels": {"onewriter.dev/inject": "true"}}
    assert (webhook["failurePolicy"], webhook["reinvocationPolicy"]) == ("Fail", "IfNeeded")
    assert webhook["timeoutSeconds"] <= 5
    left_out, within = webhook["namespaceSelector"]["matchExpressions"]
    assert left_out["values"] == ["kube-system", "system"]
    assert within["values"] == ["shop", "bank"]
    assert of_kind(rendered(LEAST), "MutatingWebhookConfiguration") == []


def test_policies_select_the_pods_that_there_are() -> None:
    documents = rendered()
    pods = [template["metadata"]["labels"] for template in pod_templates(documents)]
    pods += [
        each["spec"]["template"]["metadata"]["labels"]
        for each in of_kind(objects(configuration(documents)), "StatefulSet")
    ]
    for policy in of_kind(documents, "NetworkPolicy", "PodDisruptionBudget"):
        spec = policy["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        wanted = selector["matchLabels"].items()
        assert any(wanted <= labels.items() for labels in pods), policy["metadata"]["name"]


def test_hooks_go_when_they_are_done() -> None:
    documents = rendered()
    hooks = [
        each for each in documents if "helm.sh/hook" in each["metadata"].get("annotations", {})
    ]
    kinds = {each["metadata"]["annotations"]["helm.sh/hook"] for each in hooks}
    assert kinds == {"post-install,post-upgrade,post-rollback", "pre-delete", "test"}
    for each in hooks:
        policy = each["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        assert policy == "before-hook-creation,hook-succeeded"


def broker_ports(documents: list[Json]) -> set[int]:
    """What the chart's own pods may reach of brokers."""
    found = set()
    for policy in of_kind(documents, "NetworkPolicy"):
        for rule in policy["spec"]["egress"]:
            for peer in rule.get("to", ()):
                labels = peer.get("podSelector", {}).get("matchLabels", {})
                if labels.get("app.kubernetes.io/component") == "broker":
                    found |= {each["port"] for each in rule["ports"]}
    return found


@pytest.mark.parametrize(
    ("tls", "ports"),
    [
        ({}, {6651, 8443}),
        ({"plain": True}, {6650, 6651, 8443}),
        ({"enabled": False}, {6650, 8080}),
    ],
    ids=["defaults", "plain too", "without TLS"],
)
def test_plain_ports_are_reached_and_named_only_where_they_are_offered(
    tls: Json, ports: set[int]
) -> None:
    documents = rendered({"brokers": {"tls": tls}})
    assert broker_ports(documents) == ports
    assert configuration(documents).brokers.tls.offers_plain == (6650 in ports)
    notes = chart().render({"brokers": {"tls": tls}}, name="onewriter", namespace="system")
    (text,) = [notes[path] for path in notes if path.endswith("NOTES.txt")]
    assert ("pulsar://" in text) == (6650 in ports)
    assert ("onewriter-broker-ca" in text) == (6651 in ports)


def test_helm_test_claims_its_own_topic_over_tls() -> None:
    documents = rendered()
    topic = named(documents, "ExclusiveTopic", "onewriter-test")
    claim = named(documents, "ProducerClaim", "onewriter-test")
    pod = named(documents, "Pod", "onewriter-test")
    assert claim["spec"]["topicRef"] == {"name": topic["metadata"]["name"]}
    assert claim["spec"]["subject"] == {"serviceAccountName": pod["spec"]["serviceAccountName"]}
    command = pod["spec"]["containers"][0]["command"]
    assert command[2] == topic["spec"]["topic"]
    assert "--service-url=pulsar+ssl://onewriter-broker.system.svc.cluster.local:6651" in command


def test_metrics_of_brokers_and_operator_are_scraped_with_the_token_that_they_ask_for() -> None:
    documents = rendered({"monitoring": {"podMonitor": {"enabled": True}}})
    for part in ("broker", "operator"):
        (endpoint,) = named(documents, "PodMonitor", f"onewriter-{part}")["spec"][
            "podMetricsEndpoints"
        ]
        assert endpoint["authorization"]["credentials"] == {
            "name": "onewriter-metrics",
            "key": "token",
        }
    pod = named(documents, "Deployment", "onewriter-operator")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "metrics-token"]
    (volume,) = [each["secret"] for each in pod["volumes"] if each["name"] == "metrics-token"]
    assert environment["ONEWRITER_OPERATOR_METRICS_TOKEN_FILE"] == f"{mount['mountPath']}/token"
    assert volume["secretName"] == "onewriter-metrics"
    assert volume["optional"], "the operator makes it, and must start without it"
