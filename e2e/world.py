"""A test module's own namespace with an account, programs and writers."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from typing import Any, Self

from e2e import manifests
from e2e.api import path
from e2e.clusters import TestedCluster
from e2e.installation import NAMESPACE, RELEASE, RESTRICTED, Installation
from e2e.log import Tally
from e2e.writers import Writers, until

from onewriter_broker.log.store.keys import Keys
from onewriter_core.cluster_views import first_slot, slot_of
from onewriter_core.ids import TopicName

Json = dict[str, Any]

SERVICE_URL = f"pulsar+ssl://{RELEASE}-broker.{NAMESPACE}.svc.cluster.local:6651"


class World:
    """``with World(...) as world``: a namespace for the context. At its end every log is checked."""

    def __init__(
        self, tested: TestedCluster, installation: Installation, name: str, tally: Tally
    ) -> None:
        self.cluster = tested.cluster
        self.installation = installation
        self.api = installation.api
        short = re.sub("[^a-z]+", "-", name.rpartition(".test_")[2])[:40].strip("-")
        self.namespace = f"{short}-{uuid.uuid4().hex[:5]}"
        self.tally = tally
        self._cast: list[Writers] = []
        self.checks_at_end = True
        """Whether the logs are checked at the end of the context; not after a test that lost the store's volume."""

    def __enter__(self) -> Self:
        about = {"name": self.namespace, "labels": RESTRICTED}
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": about})
        self.apply(manifests.account(), manifests.programs(self.installation.authority()))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self.checks_at_end:
                self.check_logs()
        finally:
            self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")

    def apply(self, *documents: Json) -> None:
        """Apply objects to the namespace. Raises ClusterError."""
        self.cluster.apply(*documents, namespace=self.namespace)

    def writers(
        self,
        kind: str = manifests.STOCK,
        name: str = "",
        *,
        stateful: bool = False,
        spec: Json | None = None,
        **settings: str,
    ) -> Writers:
        """Declare a topic and start two pods that write to it, without waiting for them.

        ``spec``: of the ExclusiveTopic. ``settings``: the writers' environment.
        """
        name = name or kind
        found = Writers(self.installation, self.namespace, name)
        self.apply(
            manifests.topic(name, **(spec or {})),
            manifests.claim(name),
            manifests.workload(name, kind, SERVICE_URL, found.topic, stateful=stateful, **settings),
        )
        self._cast.append(found)
        return found

    def tried(self, kind: str) -> tuple[int, Json]:
        """Return the API server's answer to a writer's pod in a dry run."""
        pod = manifests.pod(
            "tried", kind, SERVICE_URL, f"persistent://{self.namespace}/default/tried"
        )
        status, text = self.api.ask("POST", f"{path('pods', self.namespace)}?dryRun=All", pod)
        answer: Json = json.loads(text)
        return status, answer

    def name_served_away_from(self, node: str, stem: str) -> str:
        """Return a topic's name whose broker does not run on this node, so that only the node is lost."""
        nodes = {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in self.installation.pods("broker")
        }
        return self._name_served(stem, lambda owner: nodes.get(owner, node) != node)

    def name_served_by(self, broker: str, stem: str) -> str:
        """Return a topic's name that this broker serves now."""
        return self._name_served(stem, lambda owner: owner == broker)

    def name_in_shard(self, shard: int, stem: str) -> str:
        """Return a topic's name that this shard of the store's cluster stores."""
        keys, shards = Keys(len(self.installation.owners())), self.installation.shards
        slots = range(first_slot(shard, shards), first_slot(shard + 1, shards))
        for number in range(100):
            name = f"{stem}-{number}"
            topic = TopicName.parse(f"persistent://{self.namespace}/default/{name}")
            if slot_of(keys.unit(keys.bucket(topic))) in slots:
                return name
        raise AssertionError(f"no bucket is in shard {shard}")

    def _name_served(self, stem: str, is_right: Callable[[str], bool]) -> str:
        """Return a topic's name whose broker is right, once no bucket is moving."""
        until(self.installation.is_placed, self.installation.diagnostics)
        owners = []
        for number in range(100):
            name = f"{stem}-{number}"
            owners.append(self.installation.owner(f"persistent://{self.namespace}/default/{name}"))
            if is_right(owners[-1]):
                return name
        raise AssertionError(f"the buckets are served by {sorted(set(owners))}")

    def check_logs(self) -> None:
        """Check the logs of all topics of the tests; see Writers.check."""
        checked = [each for each in self._cast if each.is_checked]
        for each in checked:
            each.record_logs()
        stored = self.installation.logs(*(each.topic for each in checked))
        for each in checked:
            each.check(stored[each.topic], self.tally)

    def diagnostics(self) -> str:
        """Diagnostics for a failure."""
        requests = (
            ("get", "xt,pclaim,pods,pdb", "-o", "wide"),
            ("get", "events.events.k8s.io", "--sort-by=.metadata.creationTimestamp"),
            *(
                ("logs", f"--selector=app={each.name}", "--all-containers", "--prefix", "--tail=8")
                for each in self._cast
            ),
        )
        reported = self.cluster.diagnostics(*requests, namespace=self.namespace)
        return f"{reported}\n{self.installation.diagnostics()}"
