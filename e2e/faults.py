"""What a test does to pods and nodes, and how each of it is undone at the end, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from e2e.machines import Machines, NotPossible

Json = dict[str, Any]

BROKER_PORTS = "6650,6651"
"""Where writers reach brokers."""


class Faults:
    """``with Faults(machines) as faults``: what was not undone by then is undone."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._undoing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undoing.close()

    # ------------------------------------------------------------ one pod

    def kill(self, pod: Json, container: str) -> None:
        """kill -9 every process of a container; the kubelet starts it again."""
        self._machines.shell(_node(pod), _signal("KILL", [_container(pod, container)]))

    def freeze(self, pod: Json) -> None:
        """Stop every process of the pod; only SIGKILL ends it."""
        self._machines.shell(_node(pod), _signal("STOP", _containers(pod)))

    def thaw(self, pod: Json) -> None:
        """Undo ``freeze``."""
        self._machines.shell(_node(pod), _signal("CONT", _containers(pod)))

    def is_running(self, pod: Json) -> bool:
        """Whether the processes of the pod's containers live, whatever the API server believes."""
        script = f"{_processes(_containers(pod))} | wc -l"
        return int(self._machines.shell(_node(pod), script)) >= len(_containers(pod))

    def cut_off(self, pod: Json, ports: str = BROKER_PORTS) -> Callable[[], None]:
        """Drop what the pod and those who listen on ``ports`` say to each other.

        In the pod's own network: whoever else is on its node notices nothing. What is returned
        heals it, and may only be called while the pod is there.
        """
        match = "-p tcp -m multiport"
        rules = (f"OUTPUT {match} --dports {ports}", f"INPUT {match} --sports {ports}")
        self._firewall(pod, *(f"-I {rule} -j DROP" for rule in rules))
        return lambda: self._firewall(pod, *(f"-D {rule} -j DROP" for rule in rules))

    def _firewall(self, pod: Json, *rules: str) -> None:
        process = f"$({_processes(_containers(pod)[:1])} | head -n1)"
        script = "; ".join(f"nsenter -t $process -n iptables -w {rule}" for rule in rules)
        self._machines.shell(_node(pod), f"process={process}; {script}")

    # ------------------------------------------------------------ a whole node

    def losable(self, nodes: list[str]) -> str:
        """One of these nodes that may be lost. Raises NotPossible."""
        for node in nodes:
            if self._machines.can_lose(node):
                return node
        raise NotPossible(f"none of the nodes {', '.join(nodes)} can be lost")

    def lose(self, node: str) -> None:
        """Pull the node's cable."""
        self._undoing.callback(self._machines.plug_in, node)
        self._machines.pull_cable(node)

    def find_again(self, node: str) -> None:
        """Plug the node in again."""
        self._machines.plug_in(node)

    def stop_kubelet(self, node: str) -> None:
        """The kubelet stands still; what it started runs on."""
        self._undoing.callback(self._machines.start_kubelet, node)
        self._machines.stop_kubelet(node)

    def start_kubelet(self, node: str) -> None:
        """The kubelet goes on."""
        self._machines.start_kubelet(node)


def _node(pod: Json) -> str:
    return str(pod["spec"]["nodeName"])


def _statuses(pod: Json) -> list[Json]:
    status = pod["status"]
    return [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]


def _containers(pod: Json) -> list[str]:
    """The ids of a pod's running containers."""
    running = [each for each in _statuses(pod) if "running" in each.get("state", {})]
    return [each["containerID"].partition("://")[2] for each in running]


def _container(pod: Json, name: str) -> str:
    (found,) = [each for each in _statuses(pod) if each["name"] == name]
    return str(found["containerID"].partition("://")[2])


def _processes(containers: list[str]) -> str:
    """Prints the processes of containers: control groups are named after them everywhere."""
    wanted = " ".join(f"-e {each}" for each in containers)
    return f"grep -ls {wanted} /proc/[0-9]*/cgroup | cut -d/ -f3"


def _signal(name: str, containers: list[str]) -> str:
    """Signals each of them; one that is gone meanwhile does not matter, none at all does."""
    listed = f'found=$({_processes(containers)}); test -n "$found"'
    return f"{listed}; for each in $found; do kill -{name} $each || true; done"
