"""The admission webhook with a real API server: certificates, and pods under the restricted profile."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tests.cluster.control_plane import ControlPlane
from tests.cluster.operators import OperatorProcess, running, wait_until
from tests.cluster.pki import Authority

from onewriter_core.kubernetes.names import INJECT_LABEL, RELAY_ANNOTATION, TOPIC_ANNOTATION

Json = dict[str, Any]

HOST = "127.0.0.1"
NAME = "inject.onewriter.dev"
VERSION_NAME = "version.onewriter.dev"
VERSION_LABEL = "version"


RESTRICTED: Json = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "app",
            "image": "app",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ],
}
"""The spec of a pod that the restricted Pod Security profile admits, without its sidecar."""


class Admission:
    """A replica of the operator that serves the webhook, and the API server's path to it.

    The certificate and key that it serves are files, which a renewal replaces as the kubelet would.
    """

    def __init__(self, cluster: ControlPlane, namespace: str, directory: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.served = directory / "served"
        self.served.mkdir()
        self.operator = OperatorProcess(
            directory,
            cluster,
            namespace,
            {},
            settings={
                "ONEWRITER_OPERATOR_WEBHOOK_CERT_FILE": str(self.served / "tls.crt"),
                "ONEWRITER_OPERATOR_WEBHOOK_KEY_FILE": str(self.served / "tls.key"),
            },
        )
        self.port = self.operator.http_port + 1
        self._pods = 0
        self._versions = 0

    def renew(self, authority: Authority, *, is_expired: bool = False) -> None:
        """Put another certificate where the operator reads it."""
        authority.server("webhook", [HOST], is_expired=is_expired)
        for name in ("tls.key", "tls.crt"):
            new = self.served / f"{name}.new"
            source = authority.directory / f"webhook.{name.partition('.')[2]}"
            new.write_bytes(source.read_bytes())
            new.replace(self.served / name)

    def trust(self, *authorities: Authority) -> None:
        """Configure the webhook so that the API server trusts these authorities; wait until it does.

        The configuration takes effect a moment after it is stored. A second webhook in it, which has no server,
        shows when: from then on a pod that requests it by the configuration's version is refused.
        """
        self._versions += 1
        version = {VERSION_LABEL: f"v{self._versions}"}
        bundle = b"".join(each.certificate.read_bytes() for each in authorities)
        own = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        pods = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
            "scope": "Namespaced",
        }
        self.cluster.apply(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": self.namespace},
                "webhooks": [
                    {
                        "name": NAME,
                        "admissionReviewVersions": ["v1"],
                        "sideEffects": "None",
                        "failurePolicy": "Fail",
                        "timeoutSeconds": 30,
                        "objectSelector": {"matchLabels": {INJECT_LABEL: "true"}},
                        "namespaceSelector": own,
                        "rules": [pods],
                        "clientConfig": {
                            "url": f"https://{HOST}:{self.port}/inject",
                            "caBundle": base64.b64encode(bundle).decode(),
                        },
                    },
                    {
                        "name": VERSION_NAME,
                        "admissionReviewVersions": ["v1"],
                        "sideEffects": "None",
                        "failurePolicy": "Fail",
                        "objectSelector": {"matchLabels": version},
                        "namespaceSelector": own,
                        "rules": [pods],
                        "clientConfig": {"url": f"https://{HOST}:1/nobody"},
                    },
                ],
            }
        )
        wait_until(lambda: VERSION_NAME in self._tried(version).stderr)

    def serial(self) -> bytes:
        """Return the certificate that a new connection receives."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection((HOST, self.port), timeout=60) as raw,
            context.wrap_socket(raw) as connection,
        ):
            found = connection.getpeercert(binary_form=True)
        assert found is not None
        return found

    def refusal(self) -> str:
        """Return why a pod that requests a sidecar is refused; empty if it is admitted with its sidecar."""
        done = self._tried({INJECT_LABEL: "true"}, "--dry-run=none")
        if done.returncode:
            return done.stderr
        spec = json.loads(done.stdout)["spec"]
        assert [each["restartPolicy"] for each in spec["initContainers"]] == ["Always"]
        return ""

    def created(self, annotations: dict[str, str], **spec: object) -> Json:
        """Create a pod that requests a sidecar; return it as it is stored."""
        done = self._tried({INJECT_LABEL: "true"}, "--dry-run=none", annotations, **spec)
        assert done.returncode == 0, done.stderr
        found: Json = json.loads(done.stdout)
        return found

    def refusal_of(self, annotations: dict[str, str], **spec: object) -> str:
        """Return why such a pod is refused."""
        done = self._tried({INJECT_LABEL: "true"}, "--dry-run=none", annotations, **spec)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def _tried(
        self,
        labels: dict[str, str],
        way: str = "--dry-run=server",
        annotations: dict[str, str] | None = None,
        **spec: object,
    ) -> subprocess.CompletedProcess[str]:
        """Create a pod, or let the API server report the result of a dry run."""
        self._pods += 1
        document: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"app-{self._pods}",
                "labels": labels,
                "annotations": annotations or {TOPIC_ANNOTATION: "orders"},
            },
            "spec": {
                "serviceAccountName": "writer",
                "containers": [{"name": "app", "image": "app"}],
            }
            | spec,
        }
        return self.cluster.kubectl(
            "create", "--filename=-", "--output=json", way,
            stdin=json.dumps(document), namespace=self.namespace, check=False,
        )  # fmt: skip

    def until_injected(self) -> None:
        wait_until(lambda: not self.refusal(), explain=self.refusal)

    def until_refused(self, reason: str) -> None:
        wait_until(lambda: reason in self.refusal(), explain=self.refusal)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def admission(api_server: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Admission]:
    """The replica, not started yet: it needs a certificate."""
    found = Admission(api_server, namespace, tmp_path)
    yield found
    api_server.kubectl("delete", "mutatingwebhookconfiguration", namespace, "--ignore-not-found")


def test_a_certificate_is_renewed_while_pods_come_and_nothing_is_restarted(
    admission: Admission, authority: Authority
) -> None:
    admission.renew(authority)
    admission.trust(authority)
    with running(admission.operator):
        admission.until_injected()
        pid, former = admission.operator.pid, admission.serial()
        expires = x509.load_der_x509_certificate(former).not_valid_after_utc.timestamp()
        assert admission.operator.metric("onewriter_tls_certificate_not_after_seconds") == expires
        admission.renew(authority)
        wait_until(lambda: admission.serial() != former)
        assert admission.refusal() == ""
        assert (admission.operator.pid, admission.operator.is_running) == (pid, True)
        assert admission.operator.get("/readyz") is not None


def test_an_expired_certificate_blocks_admission_with_a_reason_and_is_replaced(
    admission: Admission, authority: Authority
) -> None:
    admission.renew(authority, is_expired=True)
    admission.trust(authority)
    with running(admission.operator):
        admission.until_refused("certificate has expired")
        assert NAME in admission.refusal()
        admission.renew(authority)
        admission.until_injected()
        assert admission.operator.is_running


def test_a_new_ca_causes_no_gap_if_clients_trust_both(
    admission: Admission, authority: Authority, tmp_path: Path
) -> None:
    admission.renew(authority)
    admission.trust(authority)
    with running(admission.operator):
        admission.until_injected()
        another = Authority(tmp_path / "another")
        admission.trust(authority, another)
        admission.until_injected()
        former = admission.serial()
        admission.renew(another)
        while admission.serial() == former:
            assert admission.refusal() == ""
        assert admission.refusal() == ""
        admission.trust(another)
        admission.until_injected()


def test_a_mismatched_ca_bundle_is_reported_and_replaced(
    admission: Admission, authority: Authority, tmp_path: Path
) -> None:
    admission.renew(authority)
    admission.trust(Authority(tmp_path / "another"))
    with running(admission.operator):
        admission.until_refused("certificate signed by unknown authority")
        admission.trust(authority)
        admission.until_injected()


def test_half_of_a_renewal_changes_nothing_until_the_other_half_is_there(
    admission: Admission, authority: Authority
) -> None:
    admission.renew(authority)
    admission.trust(authority)
    with running(admission.operator):
        admission.until_injected()
        key = (admission.served / "tls.key").read_bytes()
        (admission.served / "tls.key").write_text("half of a key")
        wait_until(lambda: admission.operator.get("/readyz") is None)
        assert admission.refusal() == ""
        (admission.served / "tls.key").write_bytes(key)
        wait_until(lambda: admission.operator.get("/readyz") is not None)
        assert admission.refusal() == ""


@pytest.mark.parametrize(
    "annotations",
    [
        {RELAY_ANNOTATION: "true"},
        {TOPIC_ANNOTATION: "orders"},
        {RELAY_ANNOTATION: "true", TOPIC_ANNOTATION: "orders"},
    ],
    ids=["relay", "topic", "both"],
)
def test_the_restricted_profile_admits_what_is_injected(
    admission: Admission, authority: Authority, annotations: dict[str, str]
) -> None:
    """The API server checks the pod after the webhook has changed it."""
    profile = "pod-security.kubernetes.io/enforce=restricted"
    admission.cluster.kubectl("label", "namespace", admission.namespace, profile)
    admission.renew(authority)
    admission.trust(authority)
    with running(admission.operator):
        wait_until(lambda: admission.operator.get("/readyz") is not None)
        spec = admission.created(annotations, **RESTRICTED)["spec"]
        (sidecar,) = spec["initContainers"]
        (app,) = spec["containers"]
        given = {each["name"]: each.get("value") for each in sidecar["env"]}
        has_relay, leads = RELAY_ANNOTATION in annotations, TOPIC_ANNOTATION in annotations
        address = {"name": "ONEWRITER_SERVICE_URL", "value": "pulsar://127.0.0.1:6650"}
        assert sidecar["restartPolicy"] == "Always"
        assert (given.get("ONEWRITER_SIDECAR_RELAY_PORT") == "6650") is has_relay
        assert (address in app.get("env", [])) is has_relay
        assert ("ONEWRITER_SIDECAR_TOPIC" in given) is leads
        assert ("ONEWRITER_SIDECAR_RELEASE_KEY_FILE" in given) is leads
        assert ("preStop" in sidecar.get("lifecycle", {})) is leads
        assert "restricted" in admission.refusal_of(annotations), "the profile is in force"
        if has_relay:
            reason = admission.refusal_of(annotations, hostNetwork=True, **RESTRICTED)
            assert "loopback" in reason
