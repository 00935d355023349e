"""How many topics each host leads. The promotion policy Balanced chooses by these counts.

A host is the node of a writer's pod. If no identity proves the node, the host is what the writer states
(``onewriter.host``), or else its address. A broker counts its own topics at once, so that many promotions in
one tick are spread. Other brokers report their counts with their heartbeats (ownership/membership.py), up to
half a second late. The counts are a hint: only the choice among waiters of one priority depends on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from onewriter_broker.ownership.heartbeats import HOSTS_MAX
from onewriter_core.api import ExclusiveTopic
from onewriter_core.topic.events import Event, ProducerRequested
from onewriter_core.topic.model import Loads, PromotionPolicy, Purpose, Topic, Vacant


class LeaderLoads:
    """The counts of one broker. ``others`` returns the counts that the other brokers reported."""

    def __init__(self, others: Callable[[], Mapping[str, int]] = dict) -> None:
        self.is_wanted = False
        """Whether a topic is declared Balanced, so that the other brokers need the counts."""
        self._others = others
        self._hosts: dict[str, tuple[str, ...]] = {}
        self._counts: Counter[str] = Counter()

    def follow(self, declared: Iterable[ExclusiveTopic]) -> None:
        """Set the declared topics, which all brokers have."""
        balanced = PromotionPolicy.BALANCED.value
        self.is_wanted = any(each.spec.promotion.policy.value == balanced for each in declared)

    def note(self, name: str, topic: Topic) -> None:
        """Record the hosts that lead a topic. The winner of a pending grant counts already."""
        hosts = tuple(holder.host for holder in topic.holders)
        pending = topic.pending_fence
        if pending is not None and pending.purpose is Purpose.GRANT and pending.group is not None:
            hosts += (pending.group.host,)
        before = self._hosts.get(name, ())
        if hosts == before:
            return
        if hosts:
            self._hosts[name] = hosts
        else:
            del self._hosts[name]
        self._counts.update(hosts)
        for host in before:
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]

    def for_brokers(self) -> dict[str, int]:
        """The counts for the other brokers: empty if no topic is declared Balanced, otherwise a bounded number.

        Beyond the bound, the hosts that lead the fewest topics are left out. With many hosts or long names, a
        heartbeat has room for fewer (``Beat.encode``).
        """
        return dict(self._counts.most_common(HOSTS_MAX)) if self.is_wanted else {}

    def elsewhere(self, name: str, hosts: Iterable[str]) -> Loads:
        """The number of other topics that each host leads in the whole cluster."""
        others = self._others()
        here = Counter(self._hosts.get(name, ()))
        loads = {
            host: self._counts[host] - here[host] + others.get(host, 0) for host in sorted({*hosts})
        }
        return tuple((host, load) for host, load in loads.items() if load)


def may_promote(topic: Topic, event: Event) -> bool:
    """Whether the event may make the machine choose among waiters by their hosts' counts."""
    if topic.policy is not PromotionPolicy.BALANCED or not topic.queue:
        return False
    # A producer that joins the queue of a led topic causes no promotion, and there may be thousands of them.
    is_led = not any(isinstance(partition.ownership, Vacant) for partition in topic.partitions)
    return not (isinstance(event, ProducerRequested) and is_led)
