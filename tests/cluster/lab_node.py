"""One machine of the lab: its directory and addresses, the configuration of its programs, its cgroups."""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")

CONTAINERD = """
version = 2
root = "{directory}/containerd-root"
state = "{directory}/containerd-state"
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{network}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


@dataclass
class Node:
    """One machine of the lab. ``entry`` is a process in its namespaces."""

    name: str
    directory: Path
    address: str
    pod_network: ipaddress.IPv4Network
    entry: int
    cgroup: str = "/"

    @property
    def socket(self) -> Path:
        return self.directory / "containerd.sock"

    @property
    def bridge_address(self) -> str:
        return str(next(self.pod_network.hosts()))


def network_of(node: Node) -> dict[str, Any]:
    """Return the network of a node's pods as a CNI configuration."""
    return {
        "cniVersion": "0.4.0",
        "name": f"network-{node.name}",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(node.directory / "addresses"),
                    "ranges": [[{"subnet": str(node.pod_network)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def kubelet_configuration(
    node: Node, authority: Path, resolv_conf: Path, pod_logs: Path, dns: str
) -> dict[str, Any]:
    """Return the configuration of a node's kubelet. ``authority``: the certificate of its clients' CA."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failSwapOn": False,
        "failCgroupV1": False,
        "clusterDomain": "cluster.local",
        "clusterDNS": [dns],
        "resolvConf": str(resolv_conf),
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "2s",
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        # Otherwise each kubelet deletes the logs of the other's pods.
        "podLogsDir": str(pod_logs),
    }


def proxy_configuration(node: Node, kubeconfig: Path) -> dict[str, Any]:
    """Return the configuration of a node's kube-proxy."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": "10.88.0.0/14",
        "hostnameOverride": node.name,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def descendants(process: int) -> list[int]:
    """Return a process and all its descendants, the nearest first."""
    found = [process]
    for each in found:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{each}/task/{each}/children").read_text().split()
            found += [int(child) for child in children]
    return found


def make_cgroup(name: str) -> None:
    """Make a separate root in every controller: two kubelets would delete each other's pods."""
    for controller in _controllers():
        path = controller / name.strip("/")
        path.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (path / setting).exists() and not (path / setting).read_text().strip():
                (path / setting).write_text((controller / setting).read_text())


def remove_cgroup(name: str) -> None:
    """Remove what ``make_cgroup`` made."""
    for controller in _controllers():
        top = controller / name.strip("/")
        for path in sorted(top.glob("**/"), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()


def _controllers() -> list[Path]:
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [each for each in CGROUPS.iterdir() if each.is_dir() and not each.is_symlink()]
