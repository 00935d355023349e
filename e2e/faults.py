"""Faults of pods and nodes; each is undone at the end of the test in any case."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

from e2e.machines import Machines, NotPossible
from tests.cluster.lab import SHELL_SECONDS

Json = dict[str, Any]

BROKER_PORTS = "6650,6651"
"""The ports on which writers reach brokers."""

STORE_PORTS = "6379"
"""The port on which brokers reach the store."""

SAID_SECONDS = 240
"""Time limit for expected output of a container."""

SAID_POLL_SECONDS = 0.02
FIREWALL_SECONDS = 30
"""Time limit for the lock of iptables."""

CLOCK_FILE = "/dev/shm/onewriter-e2e-clock"  # noqa: S108 - a path within pods
"""The shift of a pod's wall clock; see clock.c."""

SHIFT_SECONDS = 40
"""Time limit for a process of the pod whose clock is shifted."""

WEBHOOK_PORTS = "9443"
"""The port of the operator's pods that the API server calls."""

API_PORTS = "443,6443"
"""The ports on which pods reach the API server: its Service's and its own."""


class Faults:
    """``with Faults(machines) as faults``: undoes the remaining faults at the end."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._undoing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undoing.close()

    # ------------------------------------------------------------ one pod

    def kill(self, pod: Json, container: str) -> None:
        """kill -9 every process of a container; the kubelet starts it again."""
        self._machines.shell(_node(pod), _signal("KILL", [_container(pod, container)]))

    def kill_behind(
        self, words: str, pod: Json, container: str, *, seconds: float = SAID_SECONDS
    ) -> None:
        """Kill it as soon as the container has printed these words: its own node watches the output.

        Raises ClusterError with the output that it has printed instead.
        """
        logs = f"{self._logs(pod)}/{container}/*.log"
        complaint = f"not within {seconds} s: {words}; it printed:"
        is_late = "test $(date +%s) -gt $end"
        text = (
            f"end=$(($(date +%s) + {seconds}));"
            f" until grep -qsF '{words}' {logs}; do"
            f" if {is_late}; then echo '{complaint}' >&2; tail -n 40 {logs} >&2; exit 1; fi;"
            f" sleep {SAID_POLL_SECONDS}; done"
        )
        signal = _signal("KILL", [_container(pod, container)])
        script = f"{text}; {signal}"
        self._machines.shell(_node(pod), script, seconds + SHELL_SECONDS)

    def freeze(self, pod: Json) -> None:
        """Stop every process of the pod; only SIGKILL ends it."""
        going_on = _signal("CONT", _containers(pod), is_needed=False)
        self._undoing.callback(self._undo, pod, going_on)
        self._machines.shell(_node(pod), _signal("STOP", _containers(pod)))

    def freeze_container(self, pod: Json, container: str) -> None:
        """Stop every process of one container; only SIGKILL ends it."""
        script = _signal("STOP", [_container(pod, container)])
        self._undoing.callback(
            self._undo, pod, _signal("CONT", [_container(pod, container)], is_needed=False)
        )
        self._machines.shell(_node(pod), script)

    def freeze_child(self, pod: Json, container: str) -> None:
        """Stop the children of a container's first process, but not that process, for example a supervisor."""
        self._machines.shell(
            _node(pod), _signal("STOP", [_container(pod, container)], only=_IS_CHILD)
        )

    def thaw(self, pod: Json) -> None:
        """Undo ``freeze``."""
        self._machines.shell(_node(pod), _signal("CONT", _containers(pod)))

    def shift_clock(self, pod: Json, seconds: int) -> None:
        """Set the wall clock of a pod ahead by this time, or behind; 0 undoes it.

        The pod's containers need the image of ``e2e.images``. The machine's clock stays.
        """
        if seconds:
            self._undoing.callback(self._undo, pod, _shifting(pod, 0, is_needed=False))
        self._machines.shell(_node(pod), _shifting(pod, seconds))

    def is_running(self, pod: Json) -> bool:
        """Whether the processes of the pod's containers run, independent of the API server's view."""
        script = f"{_processes(_containers(pod))} | wc -l"
        return int(self._machines.shell(_node(pod), script)) >= len(_containers(pod))

    def said(self, pod: Json, container: str) -> str:
        """A container's output so far, read on its node without the API server."""
        logs = self._logs(pod)
        printed = self._machines.shell(_node(pod), f"cat {logs}/{container}/*.log")
        # Each line begins with its time, its stream, and whether it is complete.
        return "\n".join(line.split(" ", 3)[-1] for line in printed.splitlines())

    def _logs(self, pod: Json) -> str:
        """The directory of the pod's logs on its node."""
        about = pod["metadata"]
        name = f"{about['namespace']}_{about['name']}_{about['uid']}"
        return f"{self._machines.pod_logs(_node(pod))}/{name}"

    def cut_off(
        self, pod: Json, ports: str = BROKER_PORTS, *, is_server: bool = False
    ) -> Callable[[], None]:
        """Drop the traffic between the pod and ``ports`` of others; with ``is_server`` also of the pod itself.

        The rule applies in the pod's own network, so other pods of the node are not affected. Connections of a server
        within its pod stay. The returned function removes it; calling it twice, or after the pod is gone, has
        no effect.
        """
        match = "-p tcp -m multiport"
        outward, inward = ("OUTPUT ! -o lo", "INPUT ! -i lo") if is_server else ("OUTPUT", "INPUT")
        rules = [
            f"{outward} {match} --dports {ports} -j DROP",
            f"{inward} {match} --sports {ports} -j DROP",
        ]
        if is_server:
            rules += [
                f"{outward} {match} --sports {ports} -j DROP",
                f"{inward} {match} --dports {ports} -j DROP",
            ]

        removed = "; ".join(f"while $firewall -D {rule} 2>/dev/null; do :; done" for rule in rules)
        healing = _in_network(pod, f'test -n "$process" || exit 0; {removed}')
        self._undoing.callback(self._undo, pod, healing)
        # A process in the node's own network must not match: that would cut off the whole node.
        others = 'test "$(readlink /proc/$process/ns/net)" != "$(readlink /proc/self/ns/net)"'
        dropped = "; ".join(f"$firewall -I {rule}" for rule in rules)
        self._machines.shell(_node(pod), _in_network(pod, f"{others}; {dropped}"))
        return lambda: self._undo(pod, healing)

    def _undo(self, pod: Json, script: str) -> None:
        """Run a fault on the pod's node, and register its undo if it succeeded."""
        with suppress(NotPossible):
            self._machines.shell(_node(pod), script)

    # ------------------------------------------------------------ a whole node

    def losable(self, nodes: list[str]) -> str:
        """Return one of these nodes that may be lost. Raises NotPossible."""
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
        """Stop the kubelet; the containers continue to run."""
        self._undoing.callback(self._machines.start_kubelet, node)
        self._machines.stop_kubelet(node)

    def start_kubelet(self, node: str) -> None:
        """Continue the kubelet."""
        self._machines.start_kubelet(node)

    # ------------------------------------------------------------ the control plane and its DNS

    @contextmanager
    def dns_away(self) -> Iterator[None]:
        """Stop the cluster's DNS during the context: it answers nothing."""
        self._machines.stop_dns()
        try:
            yield
        finally:
            self._machines.start_dns()

    @contextmanager
    def dns_wrong(self) -> Iterator[None]:
        """During the context every name has the address of a machine that serves nothing."""
        self._machines.misname()
        try:
            yield
        finally:
            self._machines.name_rightly()

    @contextmanager
    def api_server_away(self) -> Iterator[None]:
        """Stop the API server during the context; requests to it wait."""
        self._machines.stop_api_server()
        try:
            yield
        finally:
            self._machines.start_api_server()


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


def _names_in_cgroups(pod: Json) -> list[str]:
    """Return the names in a pod's control group, for either driver."""
    uid = str(pod["metadata"]["uid"])
    return [uid, uid.replace("-", "_")]


def _processes(names: list[str]) -> str:
    """Return a script that prints the processes of containers or pods, whose names are in their control groups."""
    wanted = " ".join(f"-e {each}" for each in names)
    return f"grep -ls {wanted} /proc/[0-9]*/cgroup | cut -d/ -f3"


def _in_network(pod: Json, script: str) -> str:
    """Return a script with ``$process`` of the pod, if there is any, and ``$firewall`` of its network."""
    process = f"process=$({_processes(_names_in_cgroups(pod))} | head -n1)"
    return f'{process}; firewall="nsenter -t $process -n iptables -w {FIREWALL_SECONDS}"; {script}'


_IS_CHILD = 'echo $found | grep -qw "$(sed -n "s/^PPid:[[:space:]]*//p" /proc/$each/status)"'
"""A condition in a script: the parent of the process is in the container, too."""


def _shifting(pod: Json, seconds: int, *, is_needed: bool = True) -> str:
    """Return a script that writes the shift of the pod's wall clock into the memory that its containers share."""
    octal = "".join(f"\\{byte:03o}" for byte in struct.pack("=q", seconds))
    listed = f"found=$({_processes(_names_in_cgroups(pod))})"
    write = f"dd of=/proc/$each/root{CLOCK_FILE} conv=notrunc,nocreat status=none 2>/dev/null"
    done = f"for each in $found; do if printf '{octal}' | {write}; then exit 0; fi; done"
    # A container that was killed starts again some time later. A pod that is gone has no process at all.
    absent = "" if is_needed else 'test -n "$found" || exit 0; '
    late = "test $(date +%s) -lt $end" + ("" if is_needed else " || exit 0")
    return (
        f"end=$(($(date +%s) + {SHIFT_SECONDS})); while :; do {listed}; {absent}{done};"
        f" {late}; sleep {SAID_POLL_SECONDS}; done"
    )


def _signal(name: str, containers: list[str], *, is_needed: bool = True, only: str = "") -> str:
    """Return a script that signals each process. Single ones may have ended meanwhile, but at least one must exist.

    ``only``: a condition for each process.
    """
    listed = f"found=$({_processes(containers)})"
    needed = 'test -n "$found"; ' if is_needed else ""
    chosen = f"{only} || continue; " if only else ""
    return f"{listed}; {needed}for each in $found; do {chosen}kill -{name} $each || true; done"
