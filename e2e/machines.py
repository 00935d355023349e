"""The machines of the nodes, for faults that the Kubernetes API does not offer.

Not every cluster supports all faults. An unsupported fault raises NotPossible, and conftest.py reports
the test as skipped.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from typing import Protocol

from tests.cluster import commands
from tests.cluster.control_plane import ClusterError
from tests.cluster.lab import SHELL_SECONDS, Lab


class NotPossible(Exception):
    """This cluster does not support a fault; the text names it."""


class Machines(Protocol):
    """The machines of nodes, by node name."""

    def shell(self, node: str, script: str, seconds: float = SHELL_SECONDS) -> str:
        """Run a script as root on a node; return its output.

        Raises NotPossible, ClusterError if it fails, CommandHangs.
        """
        ...

    def can_lose(self, node: str) -> bool:
        """Whether the node can be lost without taking the control plane along."""
        ...

    def pull_cable(self, node: str) -> None:
        """Cut the node off from all others; its containers continue to run. Raises NotPossible."""
        ...

    def plug_in(self, node: str) -> None:
        """Undo ``pull_cable``; undoing it twice does no harm."""
        ...

    def stop_kubelet(self, node: str) -> None:
        """Stop the kubelet; containers and their connections stay. Raises NotPossible."""
        ...

    def start_kubelet(self, node: str) -> None:
        """Undo ``stop_kubelet``; undoing it twice does no harm."""
        ...

    def stop_api_server(self) -> None:
        """Stop the API server: connections stay open without answers. Raises NotPossible."""
        ...

    def start_api_server(self) -> None:
        """Undo ``stop_api_server``; undoing it twice does no harm."""
        ...

    def stop_dns(self) -> None:
        """Stop the cluster's DNS: it answers nothing. Raises NotPossible."""
        ...

    def start_dns(self) -> None:
        """Undo ``stop_dns``; undoing it twice does no harm."""
        ...

    def misname(self) -> None:
        """Let the cluster's DNS give every name the address of a machine that serves nothing. Raises NotPossible."""
        ...

    def name_rightly(self) -> None:
        """Undo ``misname``; undoing it twice does no harm."""
        ...

    def pod_logs(self, node: str) -> str:
        """Return the directory on a node where the kubelet stores the output of containers.

        Raises NotPossible.
        """
        ...


class LabMachines:
    """The lab's nodes, of which only the first has no cable."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def shell(self, node: str, script: str, seconds: float = SHELL_SECONDS) -> str:
        return self._lab.shell(script, node, seconds=seconds)

    def can_lose(self, node: str) -> bool:
        return node != "lab"

    def pull_cable(self, node: str) -> None:
        if not self.can_lose(node):
            raise NotPossible(f"{node} is the control plane: it has no cable to pull")
        self._lab.cut(node)

    def plug_in(self, node: str) -> None:
        if self.can_lose(node):
            self._lab.heal(node)

    def stop_kubelet(self, node: str) -> None:
        self._signal_kubelet(node, signal.SIGSTOP)

    def start_kubelet(self, node: str) -> None:
        self._signal_kubelet(node, signal.SIGCONT)

    def stop_api_server(self) -> None:
        self._lab.signal_program("kube-apiserver", signal.SIGSTOP)

    def start_api_server(self) -> None:
        self._lab.signal_program("kube-apiserver", signal.SIGCONT)

    def stop_dns(self) -> None:
        self._lab.signal_program("coredns", signal.SIGSTOP)

    def start_dns(self) -> None:
        self._lab.signal_program("coredns", signal.SIGCONT)

    def misname(self) -> None:
        self._lab.restart_dns(is_right=False)

    def name_rightly(self) -> None:
        self._lab.restart_dns()

    def pod_logs(self, node: str) -> str:
        return str(self._lab.pod_logs(node))

    def _signal_kubelet(self, node: str, which: signal.Signals) -> None:
        self._lab.signal_program(f"kubelet-{node}", which)


class KindMachines:
    """kind's nodes are containers of Docker, with systemd and iptables inside."""

    _DIRECTIONS = ("INPUT -i", "OUTPUT -o", "FORWARD -i", "FORWARD -o")

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = tuple(nodes)

    @staticmethod
    def are(nodes: Sequence[str]) -> bool:
        """Whether all of these nodes are containers of this machine's Docker."""
        if shutil.which("docker") is None or not nodes:
            return False
        command = ["docker", "inspect", "--format={{.State.Running}}", *nodes]
        done = commands.run(command, seconds=SHELL_SECONDS)
        return done.returncode == 0 and set(done.stdout.split()) == {"true"}

    def shell(self, node: str, script: str, seconds: float = SHELL_SECONDS) -> str:
        done = commands.run(["docker", "exec", node, "sh", "-ec", script], seconds=seconds)
        if done.returncode != 0:
            raise ClusterError(f"{node}: {script}\n{done.stderr}")
        return done.stdout

    def can_lose(self, node: str) -> bool:
        return not node.endswith("control-plane")

    def pull_cable(self, node: str) -> None:
        for direction in self._DIRECTIONS:
            self.shell(node, f"iptables -w -I {direction} eth0 -j DROP")

    def plug_in(self, node: str) -> None:
        for direction in self._DIRECTIONS:
            rule = f"{direction} eth0 -j DROP"
            self.shell(node, f"while iptables -w -D {rule} 2>/dev/null; do :; done")

    def stop_kubelet(self, node: str) -> None:
        self.shell(node, "systemctl kill --signal=STOP kubelet")

    def start_kubelet(self, node: str) -> None:
        self.shell(node, "systemctl kill --signal=CONT kubelet")

    def stop_api_server(self) -> None:
        self._signal_api_servers("STOP")

    def start_api_server(self) -> None:
        self._signal_api_servers("CONT")

    def stop_dns(self) -> None:
        raise NotPossible("the DNS of kind's clusters runs in pods")

    def start_dns(self) -> None:
        """Nothing was stopped."""

    def misname(self) -> None:
        raise NotPossible("the DNS of kind's clusters runs in pods")

    def name_rightly(self) -> None:
        """Nothing was changed."""

    def pod_logs(self, node: str) -> str:
        del node
        return "/var/log/pods"

    def _signal_api_servers(self, which: str) -> None:
        for node in self._nodes:
            if not self.can_lose(node):
                self.shell(node, f"kill -{which} $(pidof kube-apiserver)")


class UnknownMachines:
    """Nodes that are reachable through Kubernetes only."""

    def shell(self, node: str, script: str, seconds: float = SHELL_SECONDS) -> str:
        del seconds
        raise NotPossible(f"nothing but Kubernetes leads to {node}: it cannot run '{script}'")

    def can_lose(self, node: str) -> bool:
        return False

    def pull_cable(self, node: str) -> None:
        raise NotPossible(f"the cable of {node} is out of reach")

    def plug_in(self, node: str) -> None:
        """Nothing was pulled."""

    def stop_kubelet(self, node: str) -> None:
        raise NotPossible(f"the kubelet of {node} is out of reach")

    def start_kubelet(self, node: str) -> None:
        """Nothing was stopped."""

    def stop_api_server(self) -> None:
        raise NotPossible("the API server's process is out of reach")

    def start_api_server(self) -> None:
        """Nothing was stopped."""

    def stop_dns(self) -> None:
        raise NotPossible("the process of the DNS is out of reach")

    def start_dns(self) -> None:
        """Nothing was stopped."""

    def misname(self) -> None:
        raise NotPossible("the process of the DNS is out of reach")

    def name_rightly(self) -> None:
        """Nothing was changed."""

    def pod_logs(self, node: str) -> str:
        raise NotPossible(f"nothing but Kubernetes leads to {node}: its files cannot be read")
