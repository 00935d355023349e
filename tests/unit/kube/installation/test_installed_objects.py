"""The installed objects, one by one."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from tests.unit.kube.installation_configurations import (
    ALL,
    CLUSTER,
    EVERYTHING,
    EXTERNAL,
    EXTERNAL_CLUSTER,
    MONITORING,
    OWNER,
    PEER,
    SENTINEL,
    TLS,
    TLS_CLUSTER,
    WITHOUT,
    configured,
    container,
    environment,
    only,
)

from onewriter_core.store_rights import broker_acl_rules
from onewriter_operator.installation import created_once, objects
from onewriter_operator.installation.brokers import DRAIN_SECONDS, SLACK_SECONDS
from onewriter_operator.installation.pods import USER

Json = dict[str, Any]


def kinds(documents: list[Json]) -> list[str]:
    return [f"{each['kind']}/{each['metadata']['name']}" for each in documents]


@pytest.mark.parametrize("case", ALL)
def test_every_object_is_owned_labelled_and_in_the_namespace(case: str) -> None:
    found = objects(configured(ALL[case]), OWNER) + created_once(configured(ALL[case]), OWNER)
    for each in found:
        metadata = each["metadata"]
        assert metadata["namespace"] == "system"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "onewriter-operator"
        (reference,) = metadata["ownerReferences"]
        assert (reference["kind"], reference["name"]) == ("ConfigMap", "onewriter-config")
        assert reference["uid"] == "u-1"
    assert len(set(kinds(found))) == len(found)


def test_the_same_configuration_gives_the_same_objects() -> None:
    assert objects(configured(), OWNER) == objects(configured(), OWNER)


def test_without_an_owner_nothing_is_owned() -> None:
    assert all("ownerReferences" not in each["metadata"] for each in objects(configured()))


def test_the_default_installation_has_these_objects() -> None:
    assert kinds(objects(configured())) == [
        "ConfigMap/onewriter-valkey",
        "Service/onewriter-valkey",
        "Service/onewriter-broker",
        "Service/onewriter-broker-pods",
        "NetworkPolicy/onewriter-broker",
        "NetworkPolicy/onewriter-valkey",
        "PodDisruptionBudget/onewriter-broker",
        "PodDisruptionBudget/onewriter-valkey",
        "StatefulSet/onewriter-valkey",
        "StatefulSet/onewriter-broker",
    ]


@pytest.mark.parametrize("case", [EXTERNAL, SENTINEL, EXTERNAL_CLUSTER])
def test_a_store_of_others_is_not_installed(case: Json) -> None:
    found = objects(configured(case))
    assert not [each for each in kinds(found) if "valkey" in each]
    assert kinds(created_once(configured(case))) == ["Secret/onewriter-metrics"]


def test_nothing_that_was_turned_off_is_installed() -> None:
    found = kinds(objects(configured(WITHOUT)))
    assert not [each for each in found if each.startswith(("NetworkPolicy", "PodDisruption"))]


# ------------------------------------------------------------ all pods


@pytest.mark.parametrize("case", ALL)
def test_pods_run_unprivileged_on_a_read_only_file_system(case: str) -> None:
    for each in objects(configured(ALL[case])):
        if each["kind"] != "StatefulSet":
            continue
        pod = each["spec"]["template"]["spec"]
        security = pod["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] == security["fsGroup"] == USER
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container(each)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_pods_are_selected_by_fixed_labels() -> None:
    found = only(objects(configured(EVERYTHING)), "StatefulSet", "onewriter-broker")
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "onewriter"
    assert labels["team"] == "platform"
    assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_a_new_release_alone_replaces_no_pod() -> None:
    versions = [objects(configured({"version": each})) for each in ("1.0.0", "1.0.1")]
    for older, newer in zip(*versions, strict=True):
        assert older["metadata"]["labels"] != newer["metadata"]["labels"]
        assert older.get("spec") == newer.get("spec")


def test_where_pods_run_is_passed_on() -> None:
    found = only(objects(configured(EVERYTHING)), "StatefulSet", "onewriter-broker")
    template = found["spec"]["template"]
    pod = template["spec"]
    assert template["metadata"]["annotations"] == {"note": "yes"}
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "mirror"}]
    (zones,) = pod["topologySpreadConstraints"]
    assert (zones["topologyKey"], zones["whenUnsatisfiable"]) == (
        "topology.kubernetes.io/zone",
        "DoNotSchedule",
    )


def test_pods_are_kept_apart_where_there_is_a_choice_with_zones_and_without() -> None:
    """Each topology key on its own: constraints have no effect on nodes that lack one of their labels."""
    pod = only(objects(configured()), "StatefulSet", "onewriter-broker")["spec"]["template"]["spec"]
    assert "topologySpreadConstraints" not in pod
    wished = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    terms = [each["podAffinityTerm"] for each in wished]
    assert [term["topologyKey"] for term in terms] == [
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ]
    for term in terms:
        labels = term["labelSelector"]["matchLabels"]
        assert labels["app.kubernetes.io/component"] == "broker"


# ------------------------------------------------------------ brokers


def brokers(more: Json | None = None) -> Json:
    return only(objects(configured(more)), "StatefulSet", "onewriter-broker")


def test_a_broker_gets_its_name_and_the_address_of_its_store() -> None:
    found = environment(brokers())
    host = "onewriter-broker-pods.system.svc.cluster.local"
    assert found["ONEWRITER_ADVERTISED_HOST"] == f"$(ONEWRITER_NAME).{host}"
    assert found["ONEWRITER_ANCHOR"] == "kubernetes"
    assert found["ONEWRITER_AUTHENTICATION_REQUIRED"] == "true"
    assert found["ONEWRITER_ADMIN_SUBJECTS"] == "system:serviceaccount:system:onewriter-operator"
    store = "onewriter-valkey.system.svc.cluster.local"
    assert found["ONEWRITER_REDIS_URL"] == f"redis://{store}:6379"
    assert found["ONEWRITER_REDIS_USERNAME"] == "onewriter"
    assert found["ONEWRITER_REDIS_PASSWORD_FILE"].endswith("/store/password")
    first = container(brokers())["env"][0]
    assert first["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}, "before its use"


def test_settings_are_passed_on_as_the_broker_reads_them() -> None:
    found = environment(brokers(EVERYTHING))
    assert found["ONEWRITER_SILENT_AFTER_SECONDS"] == "1.5"
    assert found["ONEWRITER_REQUIRE_DECLARED"] == "false", "what a person says counts"
    assert environment(brokers())["ONEWRITER_REQUIRE_DECLARED"] == "true"
    assert found["ONEWRITER_ADMIN_SUBJECTS"].endswith(",alice")


def test_a_store_of_others_is_named_without_its_password() -> None:
    found = environment(brokers(EXTERNAL))
    assert found["ONEWRITER_REDIS_URL"] == "rediss://store.example:7000"
    assert (found["ONEWRITER_REDIS_USERNAME"], found["ONEWRITER_REDIS_REPLICAS"]) == ("broker", "2")
    found = environment(brokers(SENTINEL))
    assert found["ONEWRITER_REDIS_SENTINELS"] == "one:26379,two:26379"
    assert "ONEWRITER_REDIS_URL" not in found
    assert "ONEWRITER_REDIS_PASSWORD_FILE" not in found


def test_files_for_tls_to_a_store_of_others_are_mounted_and_named() -> None:
    found = environment(brokers(EXTERNAL))
    assert found["ONEWRITER_REDIS_CA_FILE"] == "/run/onewriter/store-ca/ca.crt"
    assert found["ONEWRITER_REDIS_CERT_FILE"] == "/run/onewriter/store-tls/tls.crt"
    assert found["ONEWRITER_REDIS_KEY_FILE"] == "/run/onewriter/store-tls/tls.key"
    assert found["ONEWRITER_REDIS_SERVER_NAME"] == "primary.store.example"
    pod = brokers(EXTERNAL)["spec"]["template"]["spec"]
    secrets = {
        each["name"]: (
            each["secret"]["secretName"],
            [item["key"] for item in each["secret"]["items"]],
        )
        for each in pod["volumes"]
        if each["name"].startswith("store-") and "secret" in each
    }
    assert secrets == {
        "store-ca": ("store-authority", ["ca.crt"]),
        "store-tls": ("broker-at-store", ["tls.crt", "tls.key"]),
    }
    mounts = {
        each["name"]: each["mountPath"] for each in container(brokers(EXTERNAL))["volumeMounts"]
    }
    assert (mounts["store-ca"], mounts["store-tls"]) == (
        "/run/onewriter/store-ca",
        "/run/onewriter/store-tls",
    )


def test_sentinels_with_tls_get_the_same_files() -> None:
    tls = EXTERNAL["externalStore"]["tls"]
    case = {
        "externalStore": {"sentinels": ["rediss://one:26379", "rediss://two:26380"], "tls": tls}
    }
    found, external = environment(brokers(case)), environment(brokers(EXTERNAL))
    assert found["ONEWRITER_REDIS_SENTINELS"] == "rediss://one:26379,rediss://two:26380"
    assert "ONEWRITER_REDIS_URL" not in found
    for name in ("CA_FILE", "CERT_FILE", "KEY_FILE", "SERVER_NAME"):
        assert found[f"ONEWRITER_REDIS_{name}"] == external[f"ONEWRITER_REDIS_{name}"]
    volumes = [
        pods["spec"]["template"]["spec"]["volumes"] for pods in (brokers(case), brokers(EXTERNAL))
    ]
    mounted = [
        [each for each in found if each["name"] in {"store-ca", "store-tls"}] for found in volumes
    ]
    assert mounted[0] == mounted[1] != []


def test_a_cluster_with_tls_gets_the_same_credentials_and_files() -> None:
    found, external = environment(brokers(EXTERNAL_CLUSTER)), environment(brokers(EXTERNAL))
    assert found["ONEWRITER_REDIS_URL"] == EXTERNAL_CLUSTER["externalStore"]["url"]
    assert found["ONEWRITER_REDIS_REPLICAS"] == "1"
    for name in ("USERNAME", "PASSWORD_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE", "SERVER_NAME"):
        assert found[f"ONEWRITER_REDIS_{name}"] == external[f"ONEWRITER_REDIS_{name}"]


def test_without_tls_to_the_store_nothing_is_mounted_for_it() -> None:
    assert not [name for name in environment(brokers()) if name.startswith("ONEWRITER_REDIS_C")]
    assert "store-ca" not in {
        each["name"] for each in brokers()["spec"]["template"]["spec"]["volumes"]
    }


def test_a_broker_that_goes_has_time_to_hand_over() -> None:
    for more, stop_seconds in (({}, 10), (EVERYTHING, 20)):
        pod = brokers(more)["spec"]["template"]["spec"]
        assert container(brokers(more))["lifecycle"]["preStop"]["sleep"]["seconds"] == DRAIN_SECONDS
        wanted = DRAIN_SECONDS + stop_seconds + SLACK_SECONDS
        assert pod["terminationGracePeriodSeconds"] == wanted


def test_brokers_are_replaced_one_by_one_and_each_settles_first() -> None:
    spec = brokers()["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}, "no partition"
    assert spec["minReadySeconds"] > 0
    assert container(brokers())["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container(brokers())["livenessProbe"]["httpGet"]["path"] == "/healthz"


@pytest.mark.parametrize(
    ("more", "offered"),
    [
        ({}, [6651, 8443]),
        (EVERYTHING, [6650, 8080, 6651, 8443]),
        (WITHOUT, [6650, 8080]),
        ({"brokers": {"tls": {"enabled": False, "plain": False}}}, [6650, 8080]),
    ],
    ids=["defaults", "plain too", "without TLS", "nothing else is left"],
)
def test_plain_ports_are_offered_only_where_they_are_wanted(more: Json, offered: list[int]) -> None:
    documents = objects(configured(more))
    for name in ("onewriter-broker", "onewriter-broker-pods"):
        ports = only(documents, "Service", name)["spec"]["ports"]
        assert [each["port"] for each in ports] == offered
    ports = container(brokers(more))["ports"]
    assert [each["containerPort"] for each in ports] == [*offered, 8081]
    found = environment(brokers(more))
    if 6651 in offered:
        assert found["ONEWRITER_TLS_CA_FILE"] == "/run/onewriter/tls/ca.crt"
        assert found["ONEWRITER_TLS_ONLY"] == str(6650 not in offered).lower()
    else:
        assert not [name for name in found if "TLS" in name]
    if more is not WITHOUT:
        policy = only(documents, "NetworkPolicy", "onewriter-broker")
        assert [each["port"] for each in policy["spec"]["ingress"][0]["ports"]] == offered


def test_tls_is_served_with_the_named_secret() -> None:
    volumes = brokers(EVERYTHING)["spec"]["template"]["spec"]["volumes"]
    assert {"secretName": "given-tls", "defaultMode": 0o440} in [
        each.get("secret") for each in volumes
    ]
    assert "ONEWRITER_TLS_PORT" not in environment(brokers(WITHOUT))


def test_a_brokers_name_leads_to_it_also_when_it_is_not_ready() -> None:
    spec = only(objects(configured()), "Service", "onewriter-broker-pods")["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert brokers()["spec"]["serviceName"] == "onewriter-broker-pods"


def test_a_configured_volume_keeps_the_desired_state() -> None:
    assert "volumeClaimTemplates" not in brokers()["spec"]
    spec = brokers(EVERYTHING)["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert spec["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"


# ------------------------------------------------------------ the store


def valkey(more: Json | None = None) -> Json:
    return only(objects(configured(more)), "StatefulSet", "onewriter-valkey")


def directives(more: Json | None = None) -> dict[str, str]:
    text = only(objects(configured(more)), "ConfigMap", "onewriter-valkey")["data"]["valkey.conf"]
    return dict(line.split(" ", 1) for line in text.splitlines())


def test_the_store_keeps_what_it_acknowledged() -> None:
    found = directives()
    assert (found["appendonly"], found["appendfsync"]) == ("yes", "always")
    assert found["maxmemory-policy"] == "noeviction"
    assert int(found["maxmemory"]) == int(2 * 2**30 * 0.6)
    spec = valkey()["spec"]
    assert spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"
    assert spec["volumeClaimTemplates"][0]["spec"]["resources"] == {"requests": {"storage": "8Gi"}}
    assert "storageClassName" not in spec["volumeClaimTemplates"][0]["spec"], "the default one"


def test_volumes_made_by_hand() -> None:
    (claim,) = valkey(EVERYTHING)["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == ""


def test_further_directives_do_not_change_what_promises_depend_on() -> None:
    found = directives(EVERYTHING)
    assert (found["hz"], found["io-threads"], found["lazyfree-lazy-expire"]) == ("50", "2", "yes")
    assert found["appendfsync"] == "always"


def test_brokers_may_do_no_more_in_the_store_than_they_need() -> None:
    data = only(objects(configured()), "ConfigMap", "onewriter-valkey")["data"]
    assert data["rights"].strip() == broker_acl_rules()
    assert "password" not in data["valkey.conf"]


def test_the_server_restarts_only_when_its_configuration_changes() -> None:
    def noted(more: Json) -> Any:
        return valkey(more)["spec"]["template"]["metadata"]["annotations"]

    assert noted({}) != noted({"valkey": {"settings": {"hz": 10}}})
    assert noted({}) == noted({"brokers": {"replicas": 2}})


def test_the_store_has_no_token_of_the_api() -> None:
    assert valkey()["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_a_password_is_made_once_and_mounted_with_its_predecessor() -> None:
    made, again = (created_once(configured())[0]["data"]["password"] for _ in range(2))
    assert made != again
    assert re.fullmatch(r"[0-9a-f]{64}", base64.b64decode(made).decode())
    (volume,) = [
        each
        for each in valkey()["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "store-password"
    ]
    present, previous = (each["secret"] for each in volume["projected"]["sources"])
    assert present["name"] == previous["name"] == "onewriter-valkey-password"
    assert previous["optional"] is True
    assert [each["items"][0]["path"] for each in (present, previous)] == [
        "password",
        "previous-password",
    ]


def test_a_given_password_is_not_made() -> None:
    assert kinds(created_once(configured(EVERYTHING))) == ["Secret/onewriter-metrics"]
    for each in (valkey(EVERYTHING), brokers(EVERYTHING)):
        (volume,) = [
            volume
            for volume in each["spec"]["template"]["spec"]["volumes"]
            if volume["name"] == "store-password"
        ]
        source = volume["projected"]["sources"][0]["secret"]
        assert source == {"name": "given", "items": [{"key": "secret", "path": "password"}]}


# ------------------------------------------------------------ a cluster as the store


def shard(number: int, more: Json | None = None) -> Json:
    return only(objects(configured(more or CLUSTER)), "StatefulSet", f"onewriter-valkey-{number}")


def test_a_cluster_has_a_stateful_set_for_each_shard_and_a_name_for_each_pod() -> None:
    found = kinds(objects(configured(CLUSTER)))
    assert [each for each in found if "valkey" in each] == [
        "ConfigMap/onewriter-valkey",
        "Service/onewriter-valkey-pods",
        "NetworkPolicy/onewriter-valkey",
        "PodDisruptionBudget/onewriter-valkey",
        *(f"StatefulSet/onewriter-valkey-{number}" for number in range(3)),
    ]
    assert kinds(created_once(configured(CLUSTER))) == [
        "Secret/onewriter-valkey-password",
        "Secret/onewriter-valkey-cluster",
        "Secret/onewriter-metrics",
    ]
    spec = only(objects(configured(CLUSTER)), "Service", "onewriter-valkey-pods")["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    for number in range(3):
        spec = shard(number)["spec"]
        assert (spec["replicas"], spec["serviceName"]) == (3, "onewriter-valkey-pods")
        assert spec["podManagementPolicy"] == "Parallel"
        labels = spec["template"]["metadata"]["labels"]
        assert labels["onewriter.dev/shard"] == str(number)
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        (claim,) = spec["volumeClaimTemplates"]
        assert claim["metadata"]["labels"]["onewriter.dev/shard"] == str(number)


def test_the_pods_of_one_shard_never_share_a_node() -> None:
    for more in (CLUSTER, {"store": {"shards": 3}}):
        affinity = shard(1, more)["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        selected = term["labelSelector"]["matchLabels"]
        assert selected["onewriter.dev/shard"] == "1"
        assert selected["app.kubernetes.io/instance"] == "onewriter"


def test_the_names_of_the_longest_release_are_valid() -> None:
    """Kubernetes adds a hash of eleven characters to the name of a StatefulSet, in a label of 63."""
    whole = {"release": "r" * 40, "store": {"shards": 16, "replicas": 3}}
    for each in objects(configured(whole)):
        if each["kind"] == "StatefulSet":
            assert len(each["metadata"]["name"]) + 11 <= 63


def test_brokers_know_all_pods_of_a_cluster_and_its_replicas() -> None:
    found = environment(brokers(CLUSTER))
    scheme, _, places = found["ONEWRITER_REDIS_URL"].partition("://")
    assert scheme == "redis+cluster"
    hosts = places.split(",")
    assert len(hosts) == len(set(hosts)) == 9
    assert hosts[0] == "onewriter-valkey-0-0.onewriter-valkey-pods.system.svc.cluster.local:6379"
    assert found["ONEWRITER_REDIS_REPLICAS"] == "2"
    assert found["ONEWRITER_REDIS_USERNAME"] == "onewriter"
    largest = {"store": {"shards": 16, "replicas": 3}}
    assert environment(brokers(largest))["ONEWRITER_REDIS_URL"].count(",") < 64


def test_a_process_of_a_cluster_has_the_settings_that_losses_depend_on() -> None:
    found = directives(CLUSTER)
    assert found["cluster-enabled"] == "yes"
    assert found["cluster-require-full-coverage"] == "no"
    assert found["cluster-allow-replica-migration"] == "no"
    assert found["cluster-replica-validity-factor"] == "10"
    assert found["cluster-preferred-endpoint-type"] == "hostname"
    assert found["repl-diskless-load"] == "disabled"
    assert found["appendfsync"] == "always"
    assert not [name for name in directives() if name.startswith("cluster-")]
    assert "masterauth" not in found, "the script writes it"


def test_the_users_of_a_cluster_can_delete_nothing() -> None:
    data = only(objects(configured(CLUSTER)), "ConfigMap", "onewriter-valkey")["data"]
    users = dict(line.split(" ", 1) for line in data["cluster-users"].splitlines())
    assert sorted(users) == ["operator", "replica"]
    for rights in users.values():
        granted = {word for word in rights.split() if word.startswith("+")}
        assert not granted & {"+flushall", "+del", "+set", "+config|set", "+cluster|reset", "+@all"}
        assert "~" not in rights
    assert data["rights"].strip() == broker_acl_rules()


def test_a_process_of_a_cluster_is_ready_when_it_has_its_place() -> None:
    found = container(shard(0))
    assert found["readinessProbe"]["exec"]["command"][-1] == "ready"
    assert found["startupProbe"]["exec"]["command"][-1] == "check"
    names = [each["name"] for each in found["env"]]
    assert names.index("POD_NAME") < names.index("ONEWRITER_VALKEY_HOST")
    assert found["env"][-1]["value"] == "$(POD_NAME).onewriter-valkey-pods.system.svc.cluster.local"


def test_a_process_of_a_cluster_hands_over_before_it_stops() -> None:
    command = container(shard(0))["lifecycle"]["preStop"]["exec"]["command"]
    assert command[-2:] == ["leave", "10"]
    assert shard(0)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 10


def test_processes_of_a_cluster_and_the_operator_may_connect_to_it() -> None:
    spec = only(objects(configured(CLUSTER)), "NetworkPolicy", "onewriter-valkey")["spec"]

    def shown(direction: str, rules: list[Json]) -> list[tuple[str, list[int]]]:
        return [
            (
                rule[direction][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"],
                [each["port"] for each in rule["ports"]],
            )
            for rule in rules
        ]

    assert shown("from", spec["ingress"]) == [
        ("broker", [6379]),
        ("operator", [6379]),
        ("valkey", [6379, 16379]),
    ]
    assert shown("to", spec["egress"]) == [("valkey", [6379, 16379])]


# ------------------------------------------------------------ TLS to the store


def test_a_store_with_tls_serves_nothing_else() -> None:
    for case in (TLS, TLS_CLUSTER):
        found = directives(case)
        assert (found["port"], found["tls-port"]) == ("0", "6379")
        assert found["tls-auth-clients"] == "no"
        for name, file in (("cert", "tls.crt"), ("key", "tls.key"), ("ca-cert", "ca.crt")):
            assert found[f"tls-{name}-file"] == f"/run/onewriter/store-tls/{file}"
    cluster = directives(TLS_CLUSTER)
    assert (cluster["tls-cluster"], cluster["tls-replication"]) == ("yes", "yes")
    assert not [name for name in directives() if name.startswith("tls-")]


@pytest.mark.parametrize("case", [TLS, TLS_CLUSTER])
def test_the_processes_of_a_store_with_tls_get_its_certificate(case: Json) -> None:
    stores = [each for each in objects(configured(case)) if "valkey" in each["metadata"]["name"]]
    stores = [each for each in stores if each["kind"] == "StatefulSet"]
    assert len(stores) == (3 if case is TLS_CLUSTER else 1)
    for each in stores:
        assert each["metadata"]["annotations"]["onewriter.dev/store-tls"] == "true"
        (volume,) = [v for v in each["spec"]["template"]["spec"]["volumes"] if v["name"] == "tls"]
        assert volume["secret"]["secretName"] == "store-certificate"
        assert [item["key"] for item in volume["secret"]["items"]] == [
            "tls.crt",
            "tls.key",
            "ca.crt",
        ]
        (mount,) = [m for m in container(each)["volumeMounts"] if m["name"] == "tls"]
        variable = {"name": "ONEWRITER_VALKEY_TLS", "value": mount["mountPath"]}
        assert variable in container(each)["env"]
    assert "onewriter.dev/store-tls" not in valkey()["metadata"]["annotations"]


def test_brokers_check_the_certificate_of_the_installed_store() -> None:
    found = environment(brokers(TLS))
    host = "onewriter-valkey.system.svc.cluster.local"
    assert found["ONEWRITER_REDIS_URL"] == f"rediss://{host}:6379"
    assert found["ONEWRITER_REDIS_CA_FILE"] == "/run/onewriter/store-ca/ca.crt"
    assert "ONEWRITER_REDIS_SERVER_NAME" not in found
    (volume,) = [
        each
        for each in brokers(TLS)["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "store-ca"
    ]
    assert volume["secret"]["secretName"] == "store-certificate"
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    url = environment(brokers(TLS_CLUSTER))["ONEWRITER_REDIS_URL"]
    assert url.startswith("rediss+cluster://onewriter-valkey-0-0.onewriter-valkey-pods.system.svc.")


# ------------------------------------------------------------ who may talk to whom, drains


def test_only_brokers_may_connect_to_the_store_and_it_may_open_no_connection() -> None:
    spec = only(objects(configured()), "NetworkPolicy", "onewriter-valkey")["spec"]
    ((peer,),) = [each["from"] for each in spec["ingress"]]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "broker"
    assert spec["egress"] == []
    assert spec["policyTypes"] == ["Ingress", "Egress"]


def test_clients_and_monitoring_can_be_named() -> None:
    spec = only(objects(configured(EVERYTHING)), "NetworkPolicy", "onewriter-broker")["spec"]
    clients, monitoring, within = spec["ingress"]
    assert clients["from"][0] == PEER
    assert len(clients["from"]) == 3, "and the chart's own test and jobs"
    assert monitoring["from"] == [MONITORING]
    parts = [each["podSelector"]["matchLabels"] for each in within["from"]]
    assert [each["app.kubernetes.io/component"] for each in parts] == ["operator", "broker"]
    assert [each["port"] for each in within["ports"]] == [8443]


# ------------------------------------------------------------ the authority for clients elsewhere

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nTUlJ\nQ0E=\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "authority",
    [CERTIFICATE, CERTIFICATE * 2, KEY + CERTIFICATE, f"a bundle\n{CERTIFICATE}{KEY}"],
    ids=["one", "two", "behind a key", "before a key"],
)
def test_certificates_alone_are_published_of_the_authority(authority: str) -> None:
    found = only(objects(configured(), authority=authority), "ConfigMap", "onewriter-broker-ca")
    assert found["data"] == {"ca.crt": CERTIFICATE * authority.count("BEGIN CERT")}


@pytest.mark.parametrize(
    ("more", "authority"), [({}, ""), ({}, KEY), ({}, "broken"), (WITHOUT, CERTIFICATE)]
)
def test_nothing_is_published_without_an_authority(more: Json, authority: str) -> None:
    documents = objects(configured(more), authority=authority)
    names = {each["metadata"]["name"] for each in documents if each["kind"] == "ConfigMap"}
    assert "onewriter-broker-ca" not in names


def test_brokers_reach_names_store_api_server_and_one_another() -> None:
    def ports(more: Json) -> list[list[int]]:
        spec = only(objects(configured(more)), "NetworkPolicy", "onewriter-broker")["spec"]
        return [[each["port"] for each in rule["ports"]] for rule in spec["egress"]]

    assert ports({}) == [[53, 53], [6379], [443, 6443], [8443]]
    assert ports(EXTERNAL) == [[53, 53], [7000], [443, 6443], [8443]]
    assert ports(SENTINEL) == [[53, 53], [6379, 26379], [443, 6443], [8443]]
    assert ports(EXTERNAL_CLUSTER) == [[53, 53], [7000, 7001], [443, 6443], [8443]]
    encrypted = {"externalStore": {"sentinels": ["rediss://one:26379", "rediss://two:26380"]}}
    assert ports(encrypted)[1] == [6379, 26379, 26380]
    assert ports({"brokers": {"tls": {"enabled": False}}})[-1] == [8080]


def test_a_pod_that_does_not_work_holds_up_no_drain() -> None:
    for name in ("onewriter-broker", "onewriter-valkey"):
        spec = only(objects(configured()), "PodDisruptionBudget", name)["spec"]
        assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert spec["maxUnavailable"] == 1
