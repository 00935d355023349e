"""A real Kubernetes API on this machine's loopback: etcd, the API server, and further parts on request.

Tier ``api``: schemas, CEL, defaults, webhooks, RBAC, server-side apply, tokens. Tier ``control-plane`` adds the
controller manager and the scheduler: garbage collection, deletion of namespaces, budgets, Deployments (whose pods
stay Pending, because there is no node). Every start has its own ports and its own directory, so that tests may run
in parallel; the logs stay in that directory.

``USE_EXISTING_CLUSTER=true`` uses the cluster of KUBECONFIG instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import yaml
from tests.cluster.binaries import CONTROL_PLANE, program
from tests.cluster.commands import CommandHangs, run
from tests.cluster.pki import SERVICE_ADDRESS, Authority

from onewriter_testing.ports import free_ports

START_SECONDS = float(os.environ.get("KUBEBUILDER_CONTROLPLANE_START_TIMEOUT", "240").rstrip("s"))
STOP_SECONDS = float(os.environ.get("KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT", "60").rstrip("s"))
WAIT_SECONDS = 240
"""Time limit until an applied object takes effect."""

COMMAND_SECONDS = WAIT_SECONDS + 60.0
"""Time limit of one run of kubectl or helm: longer than its own longest wait."""

STORY_SECONDS = 20.0
"""Time limit of one diagnostic command: one to an unreachable node gets no answer at all."""

ETCD_SERVES = "ready to serve client requests"
"""The line in etcd's log once it serves. An API server that starts long before gives up."""

HOST = "127.0.0.1"
API_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
)


class ClusterError(Exception):
    """A component did not start, or kubectl failed."""


class Cluster:
    """A cluster that kubectl reaches. ``kubeconfig`` is an administrator's."""

    kubeconfig: Path

    def enter(self) -> list[str]:
        """Return the command that enters the network of the API server; empty if it is reachable from here."""
        return []

    def tool(self, name: str) -> Path:
        """Return kubectl or helm in the cluster's own version."""
        return program(name)

    def kubectl(
        self,
        *arguments: str,
        stdin: str = "",
        check: bool = True,
        namespace: str = "",
        seconds: float = COMMAND_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator. Raises ClusterError if it fails, CommandHangs."""
        command = [*self.enter(), str(self.tool("kubectl")), f"--kubeconfig={self.kubeconfig}"]
        if namespace:
            command.append(f"--namespace={namespace}")
        done = run([*command, *arguments], stdin=stdin, seconds=seconds)
        if check and done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done

    def diagnostics(
        self, *questions: Sequence[str], namespace: str = "", seconds: float = STORY_SECONDS
    ) -> str:
        """Return kubectl's output for each of these command lines, or that there was none in time."""

        def answer(words: Sequence[str]) -> str:
            try:
                done = self.kubectl(*words, check=False, namespace=namespace, seconds=seconds)
            except CommandHangs as error:
                return f"{error}\n"
            return done.stdout + done.stderr

        with ThreadPoolExecutor() as pool:
            return "\n".join(pool.map(answer, questions))

    def apply(self, *documents: Mapping[str, Any], namespace: str = "", check: bool = True) -> str:
        """Apply objects; return kubectl's output, including errors."""
        text = yaml.safe_dump_all(documents)
        done = self.kubectl("apply", "-f", "-", stdin=text, namespace=namespace, check=check)
        return done.stdout + done.stderr

    def get(self, kind: str, name: str, *, namespace: str = "") -> dict[str, Any]:
        """Return an object as the API server has it."""
        found: dict[str, Any] = json.loads(
            self.kubectl("get", kind, name, "-o", "json", namespace=namespace).stdout
        )
        return found

    def names(self, kind: str, *, namespace: str = "") -> Sequence[str]:
        """Return the names of all objects of a kind."""
        text = self.kubectl("get", kind, "-o", "name", namespace=namespace).stdout
        return [line.partition("/")[2] for line in text.split()]

    def establish(self, *files: Path) -> None:
        """Apply definitions of custom resources and wait until they are served."""
        arguments = [f"--filename={file}" for file in files]
        self.kubectl("apply", "--server-side", *arguments)
        wait = ("wait", "--for=condition=Established", f"--timeout={WAIT_SECONDS}s")
        self.kubectl(*wait, *arguments)
        for file in files:
            definition = yaml.safe_load(file.read_text())
            self.until_served(definition["spec"]["group"], definition["spec"]["names"]["plural"])

    def until_served(self, group: str, plural: str) -> None:
        """Wait until the API server serves a kind to all clients, a moment after Established."""
        self.until(
            lambda: (
                f"{plural}.{group}"
                in self.kubectl(
                    "api-resources",
                    f"--api-group={group}",
                    "--cached=false",
                    "-o=name",
                    check=False,
                ).stdout.split()
                and self.kubectl("get", f"{plural}.{group}", "-A", check=False).returncode == 0
            ),
            f"{plural}.{group} is not served",
        )

    def make_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """Make a namespace and wait until pods can be made in it: their account is created a moment later."""
        about = {"name": name, "labels": dict(labels or {})}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": about})
        if self.makes_accounts:
            account = ("get", "serviceaccount", "default")
            self.until(
                lambda: self.kubectl(*account, namespace=name, check=False).returncode == 0,
                f"namespace {name} gets no account",
            )
        return name

    @property
    def makes_accounts(self) -> bool:
        """Whether a controller creates each namespace's account."""
        return True

    def until_allowed(self, user: str, verb: str, resource: str, *, namespace: str = "") -> None:
        """Wait until a right is in effect: the API server notices it a moment after it is stored."""
        requests = ("auth", "can-i", verb, resource, f"--as={user}")
        self.until(
            lambda: self.kubectl(*requests, namespace=namespace, check=False).returncode == 0,
            f"{user} may not {verb} {resource}",
        )

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until it holds. Raises ClusterError with ``what`` is found instead."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise ClusterError(f"after {WAIT_SECONDS} s {what}")
            time.sleep(0.05)


class ControlPlane(Cluster):
    """One API server with its etcd. ``kubeconfig`` is the administrator's."""

    def __init__(self, directory: Path, *, workloads: bool = False) -> None:
        self.directory = directory
        self.workloads = workloads
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._existing = os.environ.get("USE_EXISTING_CLUSTER", "").lower() == "true"
        self.port = 0
        self.kubeconfig = Path(os.environ.get("KUBECONFIG", "~/.kube/config")).expanduser()

    @property
    def makes_accounts(self) -> bool:
        return self.workloads or self._existing

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        if not self._existing:
            try:
                self.start()
            except BaseException:
                self.stop()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------ starting and stopping

    def start(self) -> None:
        """Start all parts and wait until the API answers. Raises ClusterError, CannotBuild."""
        for name in CONTROL_PLANE if self.workloads else CONTROL_PLANE[:3]:
            program(name)
        first = free_ports(4)
        self.port, self._etcd, peers, self._extra = first, first + 1, first + 2, first + 3
        self.authority = Authority(self.directory / "pki")
        self.authority.service_account_keys()
        self.authority.server("apiserver", [*API_NAMES, HOST, SERVICE_ADDRESS])
        self.authority.client("admin", "kubernetes-admin", "system:masters")
        self.kubeconfig = self.authority.kubeconfig("admin", self.url)
        self._peers = peers
        self.start_etcd()
        self.start_api()
        if self.workloads:
            self._start_controllers()

    def start_etcd(self) -> None:
        peer = f"http://{HOST}:{self._peers}"
        self.run(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        self._wait("etcd", lambda: ETCD_SERVES in self.log("etcd", lines=1_000))

    def start_api(self) -> None:
        """Start the API server and wait until it is ready."""
        pki = self.authority.directory
        issuer = "https://kubernetes.default.svc.cluster.local"
        disabled = [] if self.workloads else ["--disable-admission-plugins=ServiceAccount"]
        self.run(
            "kube-apiserver",
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={self.port}",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            f"--service-account-issuer={issuer}",
            f"--api-audiences={issuer}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            *disabled,
        )
        self._wait("kube-apiserver", self.is_ready)

    def stop_api(self) -> None:
        """Stop the API server; etcd keeps its data."""
        self._end("kube-apiserver")

    def stop(self) -> None:
        """End all parts, the API server before its etcd, because otherwise it survives SIGTERM."""
        for name in reversed(list(self._processes)):
            self._end(name)

    def _start_controllers(self) -> None:
        pki = self.authority.directory
        self.authority.client("kcm", "system:kube-controller-manager")
        self.authority.client("scheduler", "system:kube-scheduler")
        self.run(
            "kube-controller-manager",
            f"--kubeconfig={self.authority.kubeconfig('kcm', self.url)}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={pki / 'sa.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--bind-address={HOST}",
            "--secure-port=0",
            "--leader-elect=false",
            "--allocate-node-cidrs=false",
            # Nodes have no kubelet here: they stay as a test writes them.
            "--controllers=*,-node-lifecycle-controller",
        )
        self.run(
            "kube-scheduler",
            f"--kubeconfig={self.authority.kubeconfig('scheduler', self.url)}",
            f"--bind-address={HOST}",
            "--secure-port=0",
            "--leader-elect=false",
        )
        self._wait(
            "kube-controller-manager",
            lambda: self.kubectl("get", "serviceaccount", "default", check=False).returncode == 0,
        )

    @property
    def _etcd_url(self) -> str:
        return f"http://{HOST}:{self._etcd}"

    def run(self, name: str, *flags: str) -> None:
        """Start a part. Its output goes to NAME.log."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [program(name), *flags], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def log(self, name: str, lines: int = 30) -> str:
        """Return the end of a part's log."""
        text = (self.directory / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def is_ready(self) -> bool:
        """Whether the API server reports that it is ready."""
        return self.kubectl("get", "--raw", "/readyz", check=False).returncode == 0

    def _wait(self, name: str, holds: Any) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not holds():
            process = self._processes[name]
            if process.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"{name} does not become ready:\n{self.log(name)}")
            time.sleep(0.1)

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
