"""A complete Kubernetes on this machine, without Docker: two or three nodes whose containers really run.

All parts run in their own network, mount, host name and process namespaces, entered with ``nsenter``. The lab takes
no port on this machine and changes none of its firewall rules. Ending the first process ends every component and
container at once. The lab needs root, containerd, runc and the CNI plugins of the distribution, and the programs of
``binaries``.

Node ``lab`` is the control plane and a worker. Each other node (``lab2``, ``lab3``) is connected to it by its own cable
(``cut``), so that a node can be lost while its containers continue to run.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import yaml
from tests.cluster import commands, image_archive
from tests.cluster.binaries import NODE, program
from tests.cluster.control_plane import API_NAMES, ETCD_SERVES, WAIT_SECONDS, Cluster, ClusterError
from tests.cluster.lab_node import (
    CONTAINERD,
    Node,
    descendants,
    kubelet_configuration,
    make_cgroup,
    network_of,
    proxy_configuration,
    remove_cgroup,
)
from tests.cluster.pki import SERVICE_ADDRESS, Authority

API_ADDRESS = "10.88.0.1"
SERVICES = "10.96.0.0/16"
NODES_MAX = 3
START_SECONDS = 300.0
STOP_SECONDS = 60.0
SHELL_SECONDS = 60.0
"""Time limit of one script on a node, unless the script waits for something."""

IMPORT_SECONDS = 240.0
"""Time limit for unpacking an image on a node."""

REMOVE_SECONDS = 240.0
"""Time limit for removing unpacked files."""

NODE_GRACE_SECONDS = 20
_EARLY = ("--node-monitor-period=1s", f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s")
"""A node counts as lost after this time without a sign of life; a slow kubelet must not."""

PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "gcc": "gcc",
    "busybox": "busybox-static",
}
"""Debian packages that the lab needs, by a program or file that shows that they are installed."""


@dataclass(frozen=True)
class Cable:
    """What connects a further node, by its number (2 or 3), with the first one."""

    number: int

    @property
    def node(self) -> str:
        return f"lab{self.number}"

    @property
    def address(self) -> str:
        """The address of the node."""
        return f"10.87.{self.number - 2}.2"

    @property
    def near_address(self) -> str:
        """The address of the first node on this cable."""
        return f"10.87.{self.number - 2}.1"

    @property
    def pods(self) -> ipaddress.IPv4Network:
        """The network of the node's pods."""
        return ipaddress.IPv4Network(f"10.{87 + self.number}.0.0/16")

    @property
    def near(self) -> str:
        """The interface of the first node."""
        return f"near{self.number}"

    @property
    def far(self) -> str:
        """The interface of the further node."""
        return f"far{self.number}"


def missing() -> list[str]:
    """Return why no lab can run here, one sentence each."""
    found = []
    if os.geteuid() != 0:
        found.append("root, for namespaces and containers")
    lacking = [package for sign, package in PACKAGES.items() if not is_there(sign)]
    if lacking:
        found.append(f"packages: apt-get install -y {' '.join(lacking)}")
    return found


def _cable_of(node: str) -> Cable:
    return Cable(int(node.removeprefix("lab")))


def is_there(sign: str) -> bool:
    """Whether a program is on PATH, or a file exists."""
    return Path(sign).exists() if sign.startswith("/") else shutil.which(sign) is not None


def remove(directory: Path) -> None:
    """Remove a lab's directory. ``rm`` removes the files of images several times as fast as Python."""
    commands.run(["rm", "-rf", directory], seconds=REMOVE_SECONDS)


@dataclass
class Lab(Cluster):
    """The cluster. In ``with Lab(directory) as lab`` all nodes are Ready."""

    directory: Path
    nodes: int = 2
    notices_lost_nodes_early: bool = True
    """Whether a lost node is marked after NODE_GRACE_SECONDS, so that tests are short. Otherwise as Kubernetes does by
    default."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    members: dict[str, Node] = field(default_factory=dict)
    authority: Authority = field(init=False)
    kubeconfig: Path = field(init=False)
    _entry: int = 0

    def __enter__(self) -> Self:
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
        """Start everything and wait until the nodes are Ready."""
        lacking = missing()
        if lacking:
            raise ClusterError("no lab can run here; missing " + "; ".join(lacking))
        for name in NODE:
            program(name)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._entry = self._namespaces("lab", [])
        self._start_network()
        self._start_control_plane()
        image = image_archive.pause(self.directory)
        first = Node(
            "lab",
            self.directory / "lab",
            API_ADDRESS,
            ipaddress.IPv4Network("10.88.0.0/16"),
            self._entry,
        )
        self._start_node(first, image)
        for number in range(2, 1 + min(self.nodes, NODES_MAX)):
            self._start_node(self._further_node(Cable(number)), image)
        self._start_dns()
        for name in self.members:
            for sign in ("create", "condition=Ready"):
                self.kubectl("wait", f"--for={sign}", f"node/{name}", f"--timeout={WAIT_SECONDS}s")

    def stop(self) -> None:
        """End everything: the API server first, because otherwise it survives the end of its etcd."""
        for name in ("kube-apiserver", "etcd"):
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
        entry = self.processes.get("namespaces-lab")
        if entry is not None:  # ends all remaining processes in its process namespace
            entry.kill()
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes.clear()
        for node in self.members.values():
            if node.cgroup != "/":
                remove_cgroup(node.cgroup)

    def _namespaces(self, name: str, enter: Sequence[str]) -> int:
        """Start a process that holds namespaces; return its id on this machine."""
        own = ["--pid", "--fork", "--kill-child", "--mount-proc"] if not enter else []
        command = [*enter, "unshare", "--net", "--mount", "--uts", *own, "sleep", "infinity"]
        holder = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.processes[f"namespaces-{name}"] = holder
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for process in descendants(holder.pid):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{process}/comm").read_text().strip() == "sleep":
                        return process
            time.sleep(0.02)
        raise ClusterError("the namespaces are not made")

    def enter(self) -> list[str]:
        return self.within()

    def within(self, node: str = "lab") -> list[str]:
        """Return the command that enters a node."""
        entry = self.members[node].entry if node in self.members else self._entry
        return ["nsenter", "-t", str(entry), "-n", "-m", "-u", "-p"]

    def shell(
        self,
        script: str,
        node: str = "lab",
        *,
        check: bool = True,
        seconds: float = SHELL_SECONDS,
    ) -> str:
        """Run a shell script on a node; return its output. Raises ClusterError, CommandHangs."""
        done = commands.run([*self.within(node), "sh", "-ec", script], seconds=seconds)
        if check and done.returncode != 0:
            raise ClusterError(f"{script}\n{done.stderr}")
        return done.stdout

    def _start_network(self) -> None:
        self.shell(
            "hostname lab; ip link set lo up; sysctl -qw net.ipv4.ip_forward=1;"
            f"ip link add cni0 type bridge; ip addr add {API_ADDRESS}/16 dev cni0;"
            "ip link set cni0 up;"
            # The API server calls webhooks at their Services' addresses, which kube-proxy replaces.
            f"ip route add {SERVICES} dev cni0"
        )

    def run(self, name: str, command: Sequence[str | Path], node: str = "lab") -> None:
        """Start a program on a node. Its output goes to NAME.log."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self.within(node), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def log(self, name: str, lines: int = 30) -> str:
        """Return the end of a program's log."""
        text = (self.directory / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    # ------------------------------------------------------------ the control plane

    def _start_control_plane(self) -> None:
        self.authority = authority = Authority(self.directory / "pki")
        pki = authority.directory
        url = f"https://{API_ADDRESS}:6443"
        authority.service_account_keys()
        authority.server("apiserver", [*API_NAMES, "127.0.0.1", SERVICE_ADDRESS, API_ADDRESS])
        clients = {
            "admin": ("kubernetes-admin", "system:masters"),
            "kcm": ("system:kube-controller-manager", ""),
            "scheduler": ("system:kube-scheduler", ""),
            "apikubelet": ("kube-apiserver-kubelet", "system:masters"),
            "front": ("front-proxy", ""),
            "lab": ("system:node:lab", "system:nodes"),
            **{
                name: (f"system:node:{name}", "system:nodes")
                for name in (Cable(number).node for number in range(2, 1 + NODES_MAX))
            },
        }
        for name, (user, group) in clients.items():
            authority.client(name, user, group)
            authority.kubeconfig(name, url)
        self.kubeconfig = pki / "admin.kubeconfig"
        etcd = "http://127.0.0.1:2379"
        issuer = "https://kubernetes.default.svc.cluster.local"
        self.run("etcd", [
            program("etcd"), f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=default=http://127.0.0.1:2380", "--unsafe-no-fsync",
        ])  # fmt: skip
        self.wait("etcd", lambda: ETCD_SERVES in self.log("etcd", lines=1_000))
        self.run("kube-apiserver", [
            program("kube-apiserver"), f"--etcd-servers={etcd}", "--bind-address=0.0.0.0",
            f"--advertise-address={API_ADDRESS}", "--secure-port=6443",
            f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt", f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            f"--service-account-issuer={issuer}", f"--api-audiences={issuer}",
            f"--service-cluster-ip-range={SERVICES}", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            f"--requestheader-client-ca-file={pki}/ca.crt",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki}/front.crt", f"--proxy-client-key-file={pki}/front.key",
            f"--kubelet-client-certificate={pki}/apikubelet.crt",
            f"--kubelet-client-key={pki}/apikubelet.key",
            "--kubelet-preferred-address-types=InternalIP",
        ])  # fmt: skip
        self.wait("kube-apiserver", lambda: self.kubectl("get", "--raw", "/readyz", check=False).returncode == 0)  # fmt: skip
        self.run("kube-controller-manager", [
            program("kube-controller-manager"), f"--kubeconfig={pki}/kcm.kubeconfig",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt",
            f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key",
            "--bind-address=127.0.0.1", "--leader-elect=false", "--allocate-node-cidrs=false",
            *(_EARLY if self.notices_lost_nodes_early else ()),
        ])  # fmt: skip
        self.run("kube-scheduler", [
            program("kube-scheduler"), f"--kubeconfig={pki}/scheduler.kubeconfig",
            "--bind-address=127.0.0.1", "--leader-elect=false",
        ])  # fmt: skip

    def wait(self, name: str, holds: Callable[[], bool]) -> None:
        """Wait until it holds. Raises ClusterError with the program's log."""
        deadline = time.monotonic() + START_SECONDS
        while not holds():
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"{name} does not become ready:\n{self.log(name)}")
            time.sleep(0.1)

    def _start_dns(self, *, is_right: bool = True) -> None:
        names = (
            f"kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {self.kubeconfig} lab\n    ttl 1\n  }}"
            if is_right
            else f'template IN A {{\n    answer "{{{{ .Name }}}} 1 IN A {API_ADDRESS}"\n  }}\n'
            "  template ANY AAAA {\n    rcode NOERROR\n  }"
        )
        corefile = self.directory / "Corefile"
        corefile.write_text(f".:53 {{\n  bind {API_ADDRESS}\n  errors\n  {names}\n}}\n")
        self.run("coredns", [program("coredns"), "-conf", corefile])

    def restart_dns(self, *, is_right: bool = True) -> None:
        """Start the DNS again. If it is not right, each name has the address of the API server's machine."""
        former = self.processes["coredns"]
        self.signal_program("coredns", signal.SIGKILL)
        former.wait(STOP_SECONDS)
        self._start_dns(is_right=is_right)

    # ------------------------------------------------------------ nodes

    def _further_node(self, cable: Cable) -> Node:
        """Make a machine that is connected by its own cable."""
        entry = self._namespaces(cable.node, self.within())
        inside = Path(f"/proc/{entry}/status").read_text()
        own = next(line for line in inside.splitlines() if line.startswith("NSpid")).split()[-1]
        near, far = cable.near, cable.far
        self.shell(
            f"ip link add {near} type veth peer name {far}; ip link set {far} netns {own};"
            f"ip addr add {cable.near_address}/24 dev {near}; ip link set {near} up;"
            f"ip route add {cable.pods} via {cable.address}"
        )
        node = Node(
            cable.node,
            self.directory / cable.node,
            cable.address,
            cable.pods,
            entry,
            cgroup=f"/onewriter-{cable.node}",
        )
        self.members[node.name] = node
        self.shell(
            f"hostname {node.name}; ip link set lo up; sysctl -qw net.ipv4.ip_forward=1;"
            f"ip addr add {cable.address}/24 dev {far}; ip link set {far} up;"
            f"ip route add default via {cable.near_address};"
            f"ip link add cni0 type bridge; ip addr add {node.bridge_address}/16 dev cni0;"
            "ip link set cni0 up",
            node.name,
        )
        return node

    def _start_node(self, node: Node, pause: Path) -> None:
        self.members[node.name] = node
        node.directory.mkdir(parents=True, exist_ok=True)
        if node.cgroup != "/":
            make_cgroup(node.cgroup)
        self._start_containerd(node)
        self.import_image(pause, node.name)
        self._start_kubelet(node)
        self._start_proxy(node)

    def _start_containerd(self, node: Node) -> None:
        network = node.directory / "net.d"
        network.mkdir(exist_ok=True)
        (network / "10-bridge.conflist").write_text(json.dumps(network_of(node)))
        configuration = node.directory / "containerd.toml"
        configuration.write_text(CONTAINERD.format(directory=node.directory, network=network))
        name = f"containerd-{node.name}"
        self.run(name, ["containerd", "--config", configuration], node.name)
        self.wait(name, node.socket.exists)

    def _start_kubelet(self, node: Node) -> None:
        pki = self.authority.directory
        empty = node.directory / "resolv.conf"
        empty.write_text("")
        logs = self.pod_logs(node.name)
        document = kubelet_configuration(node, pki / "ca.crt", empty, logs, API_ADDRESS)
        configuration = node.directory / "kubelet.yaml"
        configuration.write_text(yaml.safe_dump(document))
        self.run(
            f"kubelet-{node.name}",
            [
                program("kubelet"),
                f"--config={configuration}",
                f"--kubeconfig={pki / node.name}.kubeconfig",
                f"--root-dir={node.directory / 'kubelet'}",
                f"--hostname-override={node.name}",
                f"--node-ip={node.address}",
                f"--cert-dir={node.directory / 'kubelet-pki'}",
            ],
            node.name,
        )

    def _start_proxy(self, node: Node) -> None:
        document = proxy_configuration(node, self.kubeconfig)
        configuration = node.directory / "kube-proxy.yaml"
        configuration.write_text(yaml.safe_dump(document))
        name = f"kube-proxy-{node.name}"
        self.run(name, [program("kube-proxy"), f"--config={configuration}"], node.name)

    def pod_logs(self, node: str) -> Path:
        """Return the directory where a node's kubelet stores the output of containers."""
        return self.members[node].directory / "pod-logs"

    def import_image(self, archive: Path, *nodes: str) -> None:
        """Load an image on these nodes, or on all. Pods use ``imagePullPolicy: Never``."""
        for name in nodes or tuple(self.members):
            node = self.members[name]
            command = ["ctr", "-a", str(node.socket), "-n", "k8s.io", "images", "import"]
            done = commands.run(
                [*self.within(name), *command, str(archive)], seconds=IMPORT_SECONDS
            )
            if done.returncode != 0:
                raise ClusterError(f"{archive} is not loaded on {name}: {done.stderr}")

    # ------------------------------------------------------------ faults

    def cut(self, node: str) -> None:
        """Pull a node's cable. Its containers continue to run."""
        self.shell(f"ip link set {_cable_of(node).near} down")

    def heal(self, node: str) -> None:
        """Plug the cable in again."""
        cable = _cable_of(node)
        self.shell(
            f"ip link set {cable.near} up; ip route replace {cable.pods} via {cable.address}"
        )

    def signal_program(self, name: str, which: signal.Signals) -> None:
        """Signal a program by the name that it was started under, not the ``nsenter`` around it.

        Its children get no signal: a stopped iptables would keep its lock from the whole machine.
        """
        entering, program, *_ = descendants(self.processes[name].pid)
        os.kill(program, which)
        if which is signal.SIGCONT:  # it is stopped together with its child
            os.kill(entering, which)

    def processes_of(self, pod_uid: str) -> list[int]:
        """Return the ids of the processes of a pod's containers on this machine, without its pause container."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cgroup"):
            with contextlib.suppress(OSError):
                if pod_uid in path.read_text():
                    process = int(path.parent.name)
                    if Path(f"/proc/{process}/comm").read_text().strip() != "pause":
                        found.append(process)
        return sorted(found)

    def signal_pod(self, pod_uid: str, which: signal.Signals) -> None:
        """Signal every process of a pod's containers."""
        for process in self.processes_of(pod_uid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, which)

    def firewall(self, pod_uid: str, rule: str) -> None:
        """Run iptables with ``rule`` in a pod's own network, e.g. ``-A OUTPUT -p tcp -j DROP``."""
        process = self.processes_of(pod_uid)[0]
        command = ["nsenter", "-t", str(process), "-n", "iptables", *rule.split()]
        done = commands.run(command, seconds=SHELL_SECONDS)
        if done.returncode != 0:
            raise ClusterError(f"iptables {rule}: {done.stderr}")
