"""The parts that the webhook adds to a pod, and those that it never changes."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from onewriter.sidecar.settings import Settings
from onewriter_core.kubernetes.names import INJECT_LABEL
from onewriter_operator.admission import (
    CONTAINER,
    PRE_STOP,
    Injection,
    NotInjectable,
    patch_of,
    topic_name,
)

Json = dict[str, Any]

INJECTION = Injection(
    image="localhost/onewriter:dev",
    pull_policy="IfNotPresent",
    service_url="pulsar://onewriter-broker.onewriter.svc.cluster.local:6650",
    resources={"requests": {"cpu": "20m"}},
)
SECURE = Injection("i", "Always", "pulsar+ssl://b:6651", authority="-----BEGIN CERTIFICATE-----")


def pod(*, labels: Json | None = None, annotations: Json | None = None, **spec: Any) -> Json:
    found: Json = {
        "metadata": {
            "generateName": "writer-",
            "labels": {INJECT_LABEL: "true"} if labels is None else labels,
            "annotations": {"onewriter.dev/topic": "orders"}
            if annotations is None
            else annotations,
        },
        "spec": {"containers": [{"name": "app", "image": "app"}], **spec},
    }
    return found


def patched(found: Json, patch: list[Json]) -> Json:
    """The pod after a patch; only ``add`` occurs."""
    found = copy.deepcopy(found)
    for operation in patch:
        assert operation["op"] == "add"
        *path, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"][1:].split("/")
        ]
        target: Any = found
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if last == "-":
            assert isinstance(target, list)
            target.append(operation["value"])
        else:
            target[last] = operation["value"]
    return found


def injected(found: Json, injection: Injection = INJECTION) -> Json:
    return patched(found, patch_of(found, "shop", injection))


def container(found: Json) -> Json:
    (sidecar,) = [each for each in found["spec"]["initContainers"] if each["name"] == CONTAINER]
    result: Json = sidecar
    return result


def environment(found: Json) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container(found)["env"]}


def test_a_pod_that_asks_gets_a_native_sidecar() -> None:
    sidecar = container(injected(pod()))
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["command"] == ["onewriter", "sidecar"]
    assert sidecar["image"] == "localhost/onewriter:dev"
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert sidecar["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert sidecar["lifecycle"]["preStop"]["exec"]["command"] == ["/bin/sh", "-c", PRE_STOP]
    assert sidecar["resources"] == {"requests": {"cpu": "20m"}}


def test_where_process_1_is_another_program_the_command_releases_the_topic(tmp_path: Path) -> None:
    """As in a pod that shares process IDs. Here, process 1 is the init process of this machine."""
    command = tmp_path / "onewriter"
    command.write_text('#!/bin/sh\necho "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", PRE_STOP],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "sidecar release\n"


def test_the_environment_is_what_the_sidecar_understands() -> None:
    found = injected(
        pod(
            annotations={
                "onewriter.dev/topic": "orders",
                "onewriter.dev/priority": "7",
                "onewriter.dev/ready-when": "leading",
            }
        ),
        SECURE,
    )
    given = {
        name.removeprefix("ONEWRITER_SIDECAR_").lower(): value
        for name, value in environment(found).items()
        if value
    }
    settings = Settings.model_validate(given, strict=False)
    assert settings.topic == "persistent://shop/default/orders"
    assert settings.service_url == "pulsar+ssl://b:6651"
    assert settings.release_key_file == Path("/dev/shm/onewriter-release-key")  # noqa: S108
    assert settings.priority == 7
    assert settings.ready_when == "leading"
    assert settings.health_port == container(found)["readinessProbe"]["httpGet"]["port"]
    mounts = {each["name"]: each["mountPath"] for each in container(found)["volumeMounts"]}
    assert str(settings.token_file) == f"{mounts['onewriter-token']}/token"
    assert str(settings.tls_ca_file) == f"{mounts['onewriter-broker-ca']}/ca.crt"


def test_the_token_is_for_brokers_only_and_short_lived() -> None:
    (volume,) = injected(pod())["spec"]["volumes"]
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"] == {
        "path": "token",
        "audience": "onewriter",
        "expirationSeconds": 600,
    }


def test_the_ca_is_read_from_the_annotation_of_the_pod() -> None:
    found = injected(pod(), SECURE)
    assert found["metadata"]["annotations"]["onewriter.dev/broker-ca"] == SECURE.authority
    (volume,) = [each for each in found["spec"]["volumes"] if "downwardAPI" in each]
    (item,) = volume["downwardAPI"]["items"]
    assert item["fieldRef"]["fieldPath"] == "metadata.annotations['onewriter.dev/broker-ca']"


def test_the_sidecar_meets_the_restricted_standard() -> None:
    security = container(injected(pod()))["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["readOnlyRootFilesystem"] is True


def test_nothing_that_was_there_is_touched() -> None:
    before = pod(
        initContainers=[{"name": "istio-proxy", "restartPolicy": "Always"}],
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    after = injected(before)
    assert after["spec"]["containers"] == before["spec"]["containers"]
    assert after["spec"]["initContainers"][0] == before["spec"]["initContainers"][0]
    assert after["spec"]["volumes"][0] == before["spec"]["volumes"][0]
    assert after["metadata"]["labels"] == before["metadata"]["labels"] | {
        "onewriter.dev/claim": "injected"
    }


def test_a_second_time_nothing_is_added() -> None:
    assert patch_of(injected(pod(), SECURE), "shop", SECURE) == []


def test_a_container_of_that_name_that_the_author_wrote_stays() -> None:
    own = pod(initContainers=[{"name": CONTAINER, "image": "mine"}])
    assert patch_of(own, "shop", INJECTION) == []


@pytest.mark.parametrize("labels", [{}, {INJECT_LABEL: "false"}, {"app": "writer"}])
def test_a_pod_without_the_label_is_not_changed(labels: Json) -> None:
    assert patch_of(pod(labels=labels), "shop", INJECTION) == []


def test_a_claim_label_that_is_there_stays() -> None:
    found = pod(labels={INJECT_LABEL: "true", "onewriter.dev/claim": "primary"})
    assert injected(found)["metadata"]["labels"]["onewriter.dev/claim"] == "primary"


@pytest.mark.parametrize(
    ("text", "namespace", "name"),
    [
        ("orders", "shop", "persistent://shop/default/orders"),
        ("orders", "default", "persistent://public/default/orders"),
        ("persistent://a/b/c", "shop", "persistent://a/b/c"),
    ],
)
def test_topics_are_named_as_in_their_objects(text: str, namespace: str, name: str) -> None:
    assert topic_name(pod(annotations={"onewriter.dev/topic": text}), namespace) == name


RELAY = {"onewriter.dev/relay": "true"}


def test_a_pod_that_only_asks_for_a_relay() -> None:
    found = injected(pod(annotations=RELAY, containers=[{"name": "a"}, {"name": "b", "env": []}]))
    given = {
        name.removeprefix("ONEWRITER_SIDECAR_").lower(): value
        for name, value in environment(found).items()
        if value
    }
    settings = Settings.model_validate(given, strict=False)
    assert (settings.topic, settings.relay_port) == ("", 6650)
    assert "lifecycle" not in container(found)
    for each in found["spec"]["containers"]:
        assert each["env"] == [
            {"name": "ONEWRITER_SERVICE_URL", "value": "pulsar://127.0.0.1:6650"}
        ]


def test_a_pod_with_a_topic_and_a_relay_has_both() -> None:
    found = injected(pod(annotations=RELAY | {"onewriter.dev/topic": "orders"}))
    given = environment(found)
    assert given["ONEWRITER_SIDECAR_TOPIC"] == "persistent://shop/default/orders"
    assert given["ONEWRITER_SIDECAR_RELAY_PORT"] == "6650"
    assert "lifecycle" in container(found)


def test_an_address_that_the_author_chose_stays() -> None:
    own = {"name": "ONEWRITER_SERVICE_URL", "value": "pulsar://elsewhere:6650"}
    found = injected(pod(annotations=RELAY, containers=[{"name": "a", "env": [own]}]))
    assert found["spec"]["containers"][0]["env"] == [own]


def test_no_relay_where_loopback_is_the_nodes() -> None:
    with pytest.raises(NotInjectable, match="hostNetwork"):
        patch_of(pod(annotations=RELAY, hostNetwork=True), "shop", INJECTION)


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({}, "onewriter.dev/topic is missing"),
        ({"onewriter.dev/topic": " "}, "onewriter.dev/topic is missing"),
        ({"onewriter.dev/relay": "false"}, "onewriter.dev/topic is missing"),
        ({"onewriter.dev/relay": "maybe"}, "must be true or false"),
        (RELAY | {"onewriter.dev/priority": "7"}, "needs onewriter.dev/topic"),
        ({"onewriter.dev/topic": "persistent://x"}, "not a topic name"),
        ({"onewriter.dev/topic": "orders-partition-3"}, "must name a whole persistent topic"),
        ({"onewriter.dev/topic": "non-persistent://a/b/c"}, "must name a whole persistent topic"),
        ({"onewriter.dev/topic": "a", "onewriter.dev/priority": "high"}, "32-bit"),
        ({"onewriter.dev/topic": "a", "onewriter.dev/priority": "2147483648"}, "32-bit"),
        (
            {"onewriter.dev/topic": "a", "onewriter.dev/ready-when": "soon"},
            "standing-by or leading",
        ),
    ],
)
def test_an_impossible_injection_is_refused_with_a_reason(annotations: Json, message: str) -> None:
    with pytest.raises(NotInjectable, match=message):
        patch_of(pod(annotations=annotations), "shop", INJECTION)
