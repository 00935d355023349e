"""Failures of kubectl as onewriter's errors, port-forwards, and the search for the installation."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from tests.unit.kubectl.fake_kubectl import (
    AWAY,
    FORBIDDEN,
    NOT_FOUND,
    POD,
    FakeKubectl,
    Json,
    service,
)

from onewriter_core.errors import (
    ConfigurationError,
    Refused,
    Unavailable,
    Undecided,
)
from onewriter_core.kubernetes.kinds import seconds_of
from onewriter_kubectl.brokers import Brokers
from onewriter_kubectl.cli import main
from onewriter_kubectl.installation import Installation, find, operator_problem
from onewriter_kubectl.kubectl import Forbidden, Kubectl, Missing
from onewriter_kubectl.tunnel import Tunnel

RELEASE = Installation("system", "onewriter")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    found = FakeKubectl(tmp_path)
    monkeypatch.setenv("ONEWRITER_KUBECTL", str(found.program))
    return found


# ------------------------------------------------------------ words and failures


def test_the_callers_own_options_go_along(fake: FakeKubectl) -> None:
    fake.answers("get pods", "{}")
    whole = Kubectl("/file", "prod", "eve", "shop")
    whole.json("get", "pods")
    whole.json("get", "pods", namespace="other")
    whole.json("get", "pods", namespace="*")
    request = "get pods --output=json --kubeconfig=/file --context=prod --as=eve"
    assert fake.calls == [
        f"{request} --namespace=shop --request-timeout=20s",
        f"{request} --namespace=other --request-timeout=20s",
        f"{request} --all-namespaces --request-timeout=20s",
    ]


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        (NOT_FOUND, Missing, '^exclusivetopics.onewriter.dev "orders" not found$'),
        (FORBIDDEN, Forbidden, "^services is forbidden"),
        ("error: You must be logged in to the server (Unauthorized)\n", Forbidden, "logged in"),
        (
            'error: the server doesn\'t have a resource type "exclusivetopics"\n',
            Missing,
            "is onewriter installed",
        ),
        ('The ExclusiveTopic "orders" is invalid: spec: no\n', Refused, "is invalid"),
        ("Error from server (Conflict): it has changed\n", Refused, "^it has changed$"),
        ('error: context "nowhere" does not exist\n', ConfigurationError, "nowhere"),
        (AWAY, Unavailable, "^Unable to connect to the server"),
        (
            "Error from server (ServiceUnavailable): apiserver is shutting down\n",
            Unavailable,
            "shutting",
        ),
        ("", Unavailable, "without a word"),
    ],
)
def test_the_error_of_kubectl_decides_the_kind_of_failure(
    fake: FakeKubectl, output: str, kind: type[Exception], words: str
) -> None:
    fake.fails("get", output)
    with pytest.raises(kind, match=words) as found:
        Kubectl().text("get", "xt")
    assert type(found.value) is kind


def test_a_change_without_an_answer_may_have_happened(fake: FakeKubectl) -> None:
    fake.fails("annotate", AWAY)
    with pytest.raises(Undecided):
        Kubectl().text("annotate", "xt", "orders", changes=True)


def test_no_kubectl_is_a_mistake_of_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEWRITER_KUBECTL", "/nowhere/kubectl")
    with pytest.raises(ConfigurationError, match="/nowhere/kubectl is not installed"):
        Kubectl().text("get", "xt")
    with pytest.raises(ConfigurationError, match="is not installed"):
        Tunnel(Kubectl(), "system", "p", 1).open()


# ------------------------------------------------------------ the installation


def test_an_installation_that_is_named_is_not_looked_for(fake: FakeKubectl) -> None:
    assert find(Kubectl(), "system/queue") == Installation("system", "queue")
    assert fake.calls == []


def test_the_only_installation_is_found(fake: FakeKubectl) -> None:
    fake.has("get services .*--all-namespaces", service(), service())
    assert find(Kubectl()) == RELEASE
    fake.has("get services .*--namespace=there", service("there", "queue"))
    assert find(Kubectl(), "there") == Installation("there", "queue")


def test_of_several_installations_one_must_be_named(fake: FakeKubectl) -> None:
    fake.has("get services", service(), service("other", "queue"))
    with pytest.raises(ConfigurationError, match="other/queue, system/onewriter"):
        find(Kubectl())


def test_no_installation_or_none_to_be_seen(fake: FakeKubectl) -> None:
    fake.has("get services")
    with pytest.raises(Missing, match="in this cluster"):
        find(Kubectl())
    fake.fails("get services", FORBIDDEN)
    with pytest.raises(Forbidden, match="--installation NAMESPACE/RELEASE"):
        find(Kubectl())


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            {
                "holderIdentity": "op-1",
                "renewTime": "2026-01-01T00:00:05.0Z",
                "leaseDurationSeconds": 15,
            },
            "",
        ),
        (
            {
                "holderIdentity": "op-1",
                "renewTime": "2025-12-31T23:59:00Z",
                "leaseDurationSeconds": 15,
            },
            "op-1 has not renewed its Lease for 70 s",
        ),
        ({"holderIdentity": ""}, "no operator leads"),
    ],
)
def test_the_lease_shows_whether_an_operator_leads(
    fake: FakeKubectl, spec: Json, problem: str
) -> None:
    fake.shows("get leases onewriter-operator .*--namespace=system", {"spec": spec})
    now = seconds_of("2026-01-01T00:00:10Z")
    assert now is not None
    found = operator_problem(Kubectl(), RELEASE, now)
    assert problem in found
    assert bool(found) == bool(problem)


def test_no_lease_at_all(fake: FakeKubectl) -> None:
    fake.fails("get leases", 'Error from server (NotFound): leases "x" not found')
    assert "no operator has ever led" in operator_problem(Kubectl(), RELEASE, 0.0)


# ------------------------------------------------------------ tunnels and brokers


class Page(http.server.BaseHTTPRequestHandler):
    """A broker that redirects requests under /elsewhere and refuses requests without a token."""

    seen: list[tuple[str, str, str]]
    elsewhere = ""

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "")
        self.seen.append((self.headers["Host"].partition(":")[2], self.path, token))
        if self.path == "/elsewhere":
            self.send_response(307)
            self.send_header("Location", self.elsewhere)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = b'{"epoch": 7}' if token else b'{"reason": "who are you?"}'
        self.send_response(200 if token else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def page() -> Iterator[tuple[int, type[Page]]]:
    handler = type("Handler", (Page,), {"seen": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running.server_port, handler
        running.shutdown()
        thread.join()


def forwards(port: int) -> str:
    return f"Forwarding from 127.0.0.1:{port} -> 8080\n"


def pods(*names: str) -> list[Json]:
    return [{**POD, "metadata": {**POD["metadata"], "name": name}} for name in names]


@pytest.fixture
def brokers(fake: FakeKubectl) -> Iterator[Brokers]:
    found = Brokers(Kubectl(namespace="shop"), lambda: RELEASE)
    yield found
    found.close()


def test_a_broker_is_asked_through_a_tunnel_with_a_token_of_its_audience(
    fake: FakeKubectl, page: tuple[int, type[Page]], brokers: Brokers
) -> None:
    port, handler = page
    fake.has("get pods", *pods("onewriter-broker-0"))
    fake.answers("create token", "a.b.c\n")
    fake.answers("port-forward", forwards(port), stays=True)
    assert brokers.get("/x") == {"epoch": 7}
    assert handler.seen == [(str(port), "/x", "Bearer a.b.c")]
    token, listed, tunnel = fake.calls
    assert "create token onewriter-operator --audience=onewriter" in token
    assert "--namespace=system" in token
    assert "app.kubernetes.io/component=broker" in listed
    assert tunnel == (
        "port-forward --address=127.0.0.1 pod/onewriter-broker-0 :8080 --namespace=system"
    )


@pytest.mark.parametrize(("scheme", "at"), [("http", 8080), ("https", 8443)])
def test_a_broker_that_names_another_is_followed_to_that_pod(
    fake: FakeKubectl, page: tuple[int, type[Page]], brokers: Brokers, scheme: str, at: int
) -> None:
    port, handler = page
    host = "onewriter-broker-1.onewriter-broker-pods.system.svc"
    handler.elsewhere = f"{scheme}://{host}:{at}/there?a=1"
    fake.has("get pods", *pods("onewriter-broker-0", "onewriter-broker-1"))
    fake.answers("create token", "a.b.c\n")
    fake.answers("port-forward", forwards(port), stays=True)
    assert brokers.get("/elsewhere") == {"epoch": 7}
    assert [path for _, path, _ in handler.seen] == ["/elsewhere", "/there?a=1"]
    assert [call.split()[2] for call in fake.calls if "port-forward" in call] == [
        "pod/onewriter-broker-0",
        "pod/onewriter-broker-1",
    ]


def test_a_token_goes_to_brokers_only(
    fake: FakeKubectl, page: tuple[int, type[Page]], brokers: Brokers
) -> None:
    port, handler = page
    handler.elsewhere = "http://evil.example/there"
    fake.has("get pods", *pods("onewriter-broker-0"))
    fake.answers("create token", "a.b.c\n")
    fake.answers("port-forward", forwards(port), stays=True)
    with pytest.raises(Unavailable, match=r"evil.example, which is not the pod of a broker"):
        brokers.get("/elsewhere")


def test_an_unreachable_pod_is_skipped(
    fake: FakeKubectl, page: tuple[int, type[Page]], brokers: Brokers
) -> None:
    port, _ = page
    waits = {**pods("onewriter-broker-0")[0], "status": {}}
    fake.has("get pods", waits, *pods("onewriter-broker-1", "onewriter-broker-2"))
    fake.answers("create token", "a.b.c\n")
    fake.fails("port-forward .*broker-1", "error: unable to forward port\n")
    fake.answers("port-forward .*broker-2", forwards(port), stays=True)
    assert brokers.get("/x") == {"epoch": 7}


def test_no_pod_can_be_reached(fake: FakeKubectl, brokers: Brokers) -> None:
    fake.has("get pods")
    fake.answers("create token", "a.b.c\n")
    with pytest.raises(Unavailable, match="system/onewriter has no broker pods"):
        brokers.get("/x")
    fake.has("get pods", *pods("onewriter-broker-0"))
    fake.fails("port-forward", FORBIDDEN)
    with pytest.raises(Unavailable, match=r"cannot connect to pod onewriter-broker-0: .*forbidden"):
        brokers.get("/x")


def test_a_caller_without_a_token_gets_the_reason(
    fake: FakeKubectl, page: tuple[int, type[Page]]
) -> None:
    fake.fails("create token", FORBIDDEN)
    brokers = Brokers(Kubectl(), lambda: RELEASE, url=f"http://127.0.0.1:{page[0]}")
    with pytest.raises(Refused, match=r"who are you.*no token was obtained: services is forbidden"):
        brokers.get("/x")


def test_options_set_the_account_or_the_token(
    fake: FakeKubectl, page: tuple[int, type[Page]]
) -> None:
    port, handler = page
    fake.answers("create token", "made\n")
    url = f"http://127.0.0.1:{port}"
    Brokers(Kubectl(), lambda: RELEASE, url=url, account="shop/reader").get("/x")
    Brokers(Kubectl(), lambda: RELEASE, url=url, account="reader").get("/x")
    Brokers(Kubectl(), lambda: RELEASE, url=url, token="given").get("/x")  # noqa: S106 - a test's
    assert [token for *_, token in handler.seen] == ["Bearer made", "Bearer made", "Bearer given"]
    assert [call.split()[-2] for call in fake.calls] == [
        "--namespace=shop",
        "--namespace=system",
    ]


def test_the_plugin_is_installed_under_the_name_that_kubectl_looks_for() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="kubectl-onewriter")
    assert script.load() is main


def test_the_plugin_needs_only_the_package_itself() -> None:
    program = "import sys, onewriter_kubectl.cli; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    tops = {name.partition(".")[0] for name in done.stdout.split()}
    assert {"click", "yaml", "rich"} <= tops
    assert tops.isdisjoint(
        {"aiohttp", "kubernetes", "kopf", "redis", "structlog", "onewriter_broker"}
    )


def test_within_changes_only_the_namespace() -> None:
    kubectl = Kubectl("/file", namespace="here")
    assert kubectl.within("there") == replace(kubectl, namespace="there")
