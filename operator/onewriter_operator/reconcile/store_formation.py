"""Forms and repairs the cluster of the installed store, one step at a time; plan/store_shards.py decides the steps.

Each step asks all pods at the same time, plans, and executes the commands of the plan, those of different pods at the same
time, too. A pod that hangs delays a step by a bounded time. A command that fails is not repeated: the next step has new answers. Two operators at once do no harm, because
every command may be executed twice.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

import structlog

from onewriter_core.errors import Unavailable
from onewriter_core.json_values import mapping, text
from onewriter_core.kubernetes.kinds import POD, SECRET
from onewriter_core.kubernetes.objects import parse_pod
from onewriter_operator.configuration import PORT_STORE, Configuration
from onewriter_operator.installation import names
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube
from onewriter_operator.metrics import Metrics
from onewriter_operator.plan.store_shards import (
    Command,
    Layout,
    PodAnswer,
    StorePlan,
    StorePod,
    StoreState,
    plan_store,
)
from onewriter_operator.store_process import AccessDenied, StoreProcess

STEP_SECONDS: Final = 0.5
"""Delay of the next step after commands."""

INCOMPLETE_SECONDS: Final = 1.0
"""Delay of the next step while something is missing."""

COMPLETE_SECONDS: Final = 1.0
"""Delay of the next step while nothing is missing. Pods that all restarted have other addresses, and no shard is writable
before they are introduced to each other.
"""

PLACES_SECONDS: Final = 30.0
"""The nodes on which the pods run are read again after this time, and when a pod answers in another way."""

log = structlog.get_logger(__name__)


class Process(Protocol):
    """The operator's connection to the process of one pod; see StoreProcess."""

    async def ask(self) -> PodAnswer:
        """What it answers. Raises Unavailable."""

    async def execute(self, words: tuple[str | int, ...]) -> None:
        """Execute a command at the process that answered last. Raises Unavailable."""

    async def close(self) -> None:
        """Close the connection."""


Connect = Callable[[str, str], Process]
"""A connection to the pod of a name, with a password."""


class StoreClusterReconciler:
    """Keeps the cluster of one installation. ``planned`` gets every plan."""

    def __init__(
        self,
        kube: Kube,
        configuration: Configuration,
        metrics: Metrics,
        planned: Callable[[StorePlan], None],
        connect: Connect | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._configuration = configuration
        self._metrics = metrics
        self._planned = planned
        self._connect = self._connect_to_pod if connect is None else connect
        self._now = now
        self._processes: dict[str, Process] = {}
        self._encoded_password = ""
        self._is_denied = False
        self._problems: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._read_places_at = float("-inf")
        self._seen: object = None
        self._unchanged_since = now()
        self._last: StorePlan | None = None

    async def run(self) -> None:
        """Take steps until cancelled."""
        try:
            while True:
                try:
                    after = await self.step()
                except (ApiRefused, ApiUnreachable) as error:
                    log.warning("store.unknown", reason=str(error))
                    after = INCOMPLETE_SECONDS
                await asyncio.sleep(after)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connections to the pods; a later step opens them again."""
        processes, self._processes = self._processes, {}
        for process in processes.values():
            await process.close()

    async def step(self) -> float:
        """Ask, plan and execute; the delay of the next step. Raises ApiRefused, ApiUnreachable."""
        await self._connect_all()
        self._problems.clear()
        members = names.store_members(self._configuration)
        answers = dict(
            zip(
                [name for name, _ in members],
                await asyncio.gather(*(self._ask(name) for name, _ in members)),
                strict=True,
            )
        )
        unchanged_seconds = self._compare(answers)
        await self._read_places()
        pods = [
            StorePod(name, shard, self._places.get(name, ""), answers[name])
            for name, shard in members
        ]
        wanted = self._configuration.store
        plan = plan_store(pods, Layout(wanted.shards, wanted.replicas), unchanged_seconds)
        if plan.state is StoreState.UNKNOWN and self._problems:
            _, problem = min(self._problems.items())
            plan = replace(plan, message=f"{plan.message}: {problem}")
        self._report(plan)
        by_pod: dict[str, list[Command]] = {}
        for command in plan.commands:
            by_pod.setdefault(command.pod, []).append(command)
        await asyncio.gather(*map(self._execute, by_pod.values()))
        if plan.commands:
            return STEP_SECONDS
        return COMPLETE_SECONDS if plan.state is StoreState.COMPLETE else INCOMPLETE_SECONDS

    # ------------------------------------------------------------ parts of a step

    async def _execute(self, commands: Sequence[Command]) -> None:
        """Execute the commands to one pod, in order."""
        for command in commands:
            try:
                await self._processes[command.pod].execute(command.words)
            except Unavailable as error:
                log.warning("store.command_failed", command=str(command), reason=str(error))
            else:
                self._metrics.store_commands.labels(str(command.words[1])).inc()
                log.info("store.command", command=str(command))
                if command.words == ("CLUSTER", "FAILOVER"):
                    self._unchanged_since = self._now()  # a repetition would begin it again

    def _connect_to_pod(self, pod: str, password: str) -> Process:
        host = names.host(self._configuration, names.store_pods(self._configuration))
        return StoreProcess(
            f"{pod}.{host}",
            PORT_STORE,
            names.STORE_OPERATOR,
            password,
            ca_file=self._configuration.operator.store_ca_file,
        )

    async def _connect_all(self) -> None:
        """Prepare the connections, with the password that is in the Secret now. No connection without the Secret.

        After a pod has denied access the Secret is read again, and all connections are opened again if it has another
        password. The other pods stay connected: each pod learns of a changed password at another time.
        """
        if self._processes and not self._is_denied:
            return
        name = names.store_cluster_secret(self._configuration)
        secret = await self._kube.get(SECRET, self._configuration.namespace, name)
        self._is_denied = False
        encoded = text(mapping((secret or {}).get("data")).get(names.PASSWORD_KEY))
        if encoded and (not self._processes or encoded != self._encoded_password):
            await self.close()
            self._encoded_password = encoded
            password = base64.b64decode(encoded).decode().rstrip("\n")  # as $(cat) in valkey.sh
            self._processes = {
                pod: self._connect(pod, password)
                for pod, _ in names.store_members(self._configuration)
            }

    async def _ask(self, pod: str) -> PodAnswer | None:
        """The answer of this pod's own process: the host that the process announces begins with the pod's name."""
        process = self._processes.get(pod)
        if process is None:
            return None
        try:
            answer = await process.ask()
        except AccessDenied as error:
            log.warning("store.access_denied", pod=pod, reason=str(error))
            self._is_denied = True
            self._problems[pod] = str(error)
        except Unavailable as error:
            log.debug("store.no_answer", pod=pod, reason=str(error))
            self._problems[pod] = str(error)
        else:
            announced = answer.view.own.host
            if announced.partition(".")[0] == pod:
                return answer
            # The name server answered with a former address, which another pod has now.
            log.warning("store.other_process", pod=pod, announced=announced)
            await process.close()
        return None

    def _compare(self, answers: dict[str, PodAnswer | None]) -> float:
        """For how long the roles and connections have been as they are."""
        seen = {
            pod: answer
            and (
                answer.is_in_sync,
                frozenset(
                    (node.node_id, node.follows, node.slots, node.flags)
                    for node in answer.view.nodes
                    if "handshake" not in node.flags  # each introduction in vain adds one
                ),
            )
            for pod, answer in answers.items()
        }
        if seen != self._seen:
            self._seen = seen
            self._unchanged_since = self._now()
            self._read_places_at = float("-inf")
        return self._now() - self._unchanged_since

    async def _read_places(self) -> None:
        """Read on which nodes the pods run. Without an answer the former nodes stay: repairs do not depend on them."""
        if self._now() - self._read_places_at < PLACES_SECONDS:
            return
        configuration = self._configuration
        labels = ",".join(
            f"{label}={value}"
            for label, value in names.selector(configuration, names.VALKEY).items()
        )
        try:
            found = await self._kube.list(POD, configuration.namespace, labels)
        except (ApiRefused, ApiUnreachable) as error:
            log.warning("store.nodes_unknown", reason=str(error))
            return
        self._places = {pod.key.name: pod.node for pod in map(parse_pod, found)}
        self._read_places_at = self._now()

    def _report(self, plan: StorePlan) -> None:
        self._planned(plan)
        self._metrics.store_planned(plan.state)
        last = self._last
        if last is None or (last.state, last.message) != (plan.state, plan.message):
            log.info("store.state", state=plan.state.value, message=plan.message)
        self._last = plan
