"""The image: its contents, and that all components run unprivileged on a read-only file system."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from tests.cluster import images
from tests.cluster.container import USER, Container
from tests.unit.kube.installation_configurations import configured

from onewriter_broker.log.store.keys import MEMBERS
from onewriter_operator.installation import valkey_configuration
from onewriter_testing.ports import free_ports

pytestmark = pytest.mark.nodes

SECONDS_MAX = 240.0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images.unpack(tmp_path_factory.mktemp("image"))


Run = Callable[..., Container]


@pytest.fixture
def run(root: Path, tmp_path: Path) -> Iterator[Run]:
    """Start containers. All are stopped at the end."""
    started: list[Container] = []

    def start(*command: str, **options: object) -> Container:
        container = Container(root, tmp_path, command, **options)  # type: ignore[arg-type]
        started.append(container)
        container.start()
        return container

    yield start
    for each in started:
        each.stop()


def eventually(holds: Callable[[], bool], container: Container) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, container.log()
        time.sleep(0.1)


def owned(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o777)
    return path


def test_every_verb_can_be_used(run: Run) -> None:
    container = run("onewriter", "--help")
    assert container.wait() == 0
    output = container.log()
    for verb in ("broker", "operator", "sidecar", "release", "check", "status", "verify"):
        assert f"\n  {verb} " in output, output
    assert "pip install" not in output, "something is missing"


def test_nothing_can_be_written(run: Run) -> None:
    # One pipe for output and errors, since lines of two pipes can run into each other.
    container = run(
        "sh", "-c", "exec 2>&1; id -u; touch /opt/onewriter/x; touch /tmp/x && echo temporary"
    )
    container.wait()
    output = container.log()
    assert {str(USER), "temporary"} < set(output.splitlines())
    assert "Read-only file system" in output


def ready(port: int) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/readyz")
        found: dict[str, object] = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    return found


def test_a_store_and_a_broker_run_and_stop(run: Run, tmp_path: Path) -> None:
    ports = free_ports(3)
    password = owned(tmp_path / "password")
    (password / "password").write_text("secret")
    document = valkey_configuration.config_map(configured())
    assert document is not None
    configuration = owned(tmp_path / "configuration")
    for name, text in document["data"].items():
        (configuration / name).write_text(text.replace("port 6379", f"port {ports}"))
    variables = {"ONEWRITER_VALKEY_PORT": str(ports)}
    store = run(
        *("sh", "/etc/onewriter/valkey/valkey.sh", "run"),
        environment=variables,
        writable={"/data": owned(tmp_path / "data"), "/run/valkey": owned(tmp_path / "run")},
        readable={"/etc/onewriter/valkey": configuration, "/run/onewriter/store": password},
    )
    check = ("sh", "/etc/onewriter/valkey/valkey.sh", "check")
    eventually(lambda: store.execute("env", *_given(variables), *check).returncode == 0, store)
    with redis.Redis(port=ports, username="onewriter", password="secret") as connected:  # noqa: S106
        assert connected.exists(MEMBERS) == 0  # the brokers' user may not PING
    broker = run(
        *("onewriter", "broker"),
        environment={
            "ONEWRITER_REDIS_URL": f"redis://127.0.0.1:{ports}",
            "ONEWRITER_REDIS_USERNAME": "onewriter",
            "ONEWRITER_REDIS_PASSWORD_FILE": "/run/onewriter/store/password",
            "ONEWRITER_PORT": str(ports + 1),
            "ONEWRITER_HTTP_PORT": str(ports + 2),
            "ONEWRITER_DATA_DIR": "/var/lib/onewriter",
        },
        writable={"/var/lib/onewriter": owned(tmp_path / "broker")},
        readable={"/run/onewriter/store": password},
    )
    eventually(lambda: ready(ports + 2).get("ready") is True, broker)
    assert broker.stop() == 0, broker.log()
    assert store.stop() == 0, store.log()


def _given(variables: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]
