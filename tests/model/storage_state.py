"""The vocabulary of the storage model: its rules, its scope, its states and its actions.

storage_protocol describes the possible actions and the race that the model is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Rules:
    """The protections in force. The defaults are the protocol; a variant omits some of them.

    ``replid_guard``: a write is refused if the dataset is not the one that it was bound to.
    ``registered``: the anchor names the dataset that counts. Without it a broker binds to the dataset that it
    finds, and re-binds after a failover if the anchor still names it as owner.
    ``by_previous``, ``by_generation`` and ``by_note``: the ways in which a dataset can be adopted. ``note_checked``: the
    note of a replid is executed only by a dataset that has this replid.
    ``by_anything``: any dataset can be adopted.
    ``past_refused``: a dataset that was registered before is never adopted again.
    ``stamp_after``: the generation is written after the compare-and-set, not before.
    ``owner_check``: what a write compares with the bucket's stamp.
    ``late_stamp_refused``: a stamp older than the present one is refused.
    ``empty_stamp_refused``: a stamp is refused if the bucket has no record, unless its broker found no record
    before its compare-and-set.
    ``birthmarked``: such a stamp also requires the same birthmark that the broker found then.
    ``generation_check``: a write is refused if the bucket's generation is above its own.
    ``token_check``: a write is refused unless the log's token is that of its own ledger.
    ``fresh_block``: ledgers left over from an earlier ownership are discarded.
    ``careful_resume``: a topic epoch found in the log is trusted only if its marker was written in the present
    generation.
    """

    replid_guard: bool = True
    registered: bool = True
    by_previous: bool = True
    by_generation: bool = True
    by_note: bool = True
    note_checked: bool = True
    by_anything: bool = False
    past_refused: bool = True
    stamp_after: bool = True
    owner_check: Literal["nothing", "owner", "version"] = "version"
    late_stamp_refused: bool = True
    empty_stamp_refused: bool = True
    birthmarked: bool = True
    generation_check: bool = True
    token_check: bool = True
    fresh_block: bool = True
    careful_resume: bool = True


PROTOCOL = Rules()
"""Level 4: the protocol of the broker."""

ID_FENCE_ONLY = Rules(
    replid_guard=False,
    registered=False,
    owner_check="nothing",
    generation_check=False,
    token_check=False,
)
"""Level 1: ledgers from the anchor, and only the store's order of IDs as a check."""

UNREGISTERED = Rules(
    registered=False, owner_check="nothing", generation_check=False, token_check=False
)
"""Level 2: every write checks the dataset, but no registration names the dataset that counts."""

LINEAGE_BY_REPLID_ONLY = Rules(by_generation=False, by_note=False)
"""Level 3: the dataset is registered, and adopted by replid2 alone."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The bounds of the search.

    ``versions``: successful compare-and-sets. ``datasets``: replids, including the first one, so that at most
    ``datasets - 1`` promotions, restarts and spontaneous changes of replid happen. ``block``: ledgers reserved by
    one compare-and-set. ``reads_apart``: reading the anchor and inspecting the node are two steps. If nothing is
    written before the compare-and-set, one step reaches the same outcomes: an attempt that another version
    overtook between the two can only lose, so a read that matters can as well be made just before the inspection.
    ``needless``: an owner may acquire again although its dataset is registered and its reservation is not used
    up. ``begun``: the search starts after A has acquired, stamped and opened its first ledger, which saves eight
    steps. ``losses``: a promotion or restart may lose any number of the last writes. ``flushes``: how often an
    operator empties a live dataset by mistake. Without flushes the model omits birthmarks, because they make no
    difference then. ``notes``: how often any broker notes the replid of any primary in its dataset, at any time.
    """

    nodes: int = 2
    brokers: int = 2
    versions: int = 3
    datasets: int = 3
    block: int = 2
    reads_apart: bool = True
    needless: bool = False
    begun: bool = False
    losses: bool = True
    flushes: int = 0
    notes: int = 0


class Version(NamedTuple):
    """One version of the anchor's record."""

    generation: int
    replid: int
    owner: int
    high_water: int


class Write(NamedTuple):
    """One write as executed by a node.

    ``stamp``: number = anchor version. ``generation``: number = generation, written by a variant before its
    compare-and-set. ``marker``: number = ledger, with epoch and generation. ``flush``: removes everything written
    before it. ``birth``: number = the birthmark. ``identity``: number = the noted replid. ``stale`` (ghost): a write that should have been refused if this
    branch counts.
    """

    kind: Literal["stamp", "generation", "marker", "flush", "birth", "identity", "stale"]
    number: int
    generation: int = 0
    epoch: int = 0


class Node(NamedTuple):
    """One server. ``previous`` is its ``master_replid2``, or 0 if it has none."""

    primary: bool
    replid: int
    previous: int
    writes: tuple[Write, ...]


class Binding(NamedTuple):
    """The state that one acquisition left with its broker.

    The reservation is ``first`` to ``end``; the ledgers below ``following`` are used. ``epoch`` is the newest
    granted topic epoch as far as the broker knows; 0: it does not know. ``create``: it may stamp a bucket without a
    record, in which there is nothing but ``birthmark``, if that is set.
    """

    replid: int
    first: int
    following: int
    end: int
    epoch: int
    create: bool = True
    birthmark: int = 0


class Attempt(NamedTuple):
    """An acquisition under way. ``replid`` 0: it has read the anchor but not yet inspected the node."""

    version: int
    replid: int = 0
    adopt: bool = False
    announced: bool = False
    empty: bool = False
    birthmark: int = 0


class State(NamedTuple):
    anchor: tuple[Version, ...]
    nodes: tuple[Node, ...]
    bindings: tuple[Binding, ...]
    attempts: tuple[Attempt | None, ...]
    elected: int
    granted: int
    granted_epoch: int
    parents: tuple[int, ...]
    flushed: int = 0
    births: int = 0
    notes: int = 0


class Action(NamedTuple):
    """One action, as data for properties and as a line of a counter-example.

    ``version`` is the anchor version that was read, or the one whose binding acts. ``number`` is a ledger, an
    epoch or a count of surviving writes, depending on the kind.
    """

    kind: str
    node: int = -1
    broker: int = -1
    version: int = -1
    number: int = 0
    detail: str = ""

    def __str__(self) -> str:
        who = f"broker {'AB'[self.broker] if self.broker < 2 else self.broker}"
        what = f"{who}, bound by version {self.version},"
        where = f"node {self.node}"
        match self.kind:
            case "read":
                return f"{who} reads the anchor: version {self.version}"
            case "observe":
                return f"{who} looks at {where}: {self.detail}"
            case "announce":
                return f"{who} writes generation {self.number} to {where}, before its CAS"
            case "acquire":
                return f"{who} wins the CAS: version {self.version}, {self.detail}"
            case "lose":
                return f"{who} loses the CAS it based on version {self.version}"
            case "rebind":
                return f"{who}, still the owner, binds itself to {self.detail}"
            case "bear":
                return f"{who} leaves birthmark {self.number} on {where}"
            case "identify":
                return f"a broker notes on {where} that its replid is {self.number}"
            case "stamp":
                return f"{what} stamps {where}"
            case "recover":
                return f"{what} reads topic epoch {self.number} from the log on {where}"
            case "grant":
                return f"{what} opens ledger {self.number} on {where}: a new topic epoch is granted"
            case "keep":
                return f"{what} opens ledger {self.number} on {where}, {self.detail}"
            case "append" | "cursor" | "catalog":
                return f"{what} gets a stale {self.kind} write accepted on {where}"
            case "promote":
                return f"{where} is promoted; {self.number} writes of its primary had reached it"
            case "flush":
                return f"the dataset of {where} is emptied by mistake"
            case "restart":
                return f"{where} restarts from {self.detail}; {self.number} writes survive"
            case _:
                return f"{where} becomes a replica of {self.detail}"


class View(NamedTuple):
    """The values that the scripts find in a node: a fold over its writes. Zero if nothing was written."""

    generation: int
    stamped: int
    ledger: int
    marker_generation: int
    epoch: int
    stale: bool
    rising: bool
    epochs: tuple[tuple[int, int], ...]
    birthmark: int = 0
    identity: int = 0

    def epoch_of(self, ledger: int) -> int:
        """Return the topic epoch of a ledger's marker, or the ledger itself if the marker is not here."""
        return next((epoch for own, epoch in self.epochs if own == ledger), ledger)


EMPTY = View(0, 0, 0, 0, 0, stale=False, rising=True, epochs=())


@cache
def view(writes: tuple[Write, ...]) -> View:
    if not writes:
        return EMPTY
    before, last = view(writes[:-1]), writes[-1]
    match last.kind:
        case "stamp":
            return before._replace(generation=last.generation, stamped=last.number, birthmark=0)
        case "generation":
            return before._replace(generation=last.number)
        case "marker":
            return before._replace(
                ledger=last.number,
                marker_generation=last.generation,
                epoch=last.epoch,
                rising=before.rising and last.number > before.ledger,
                epochs=(*before.epochs, (last.number, last.epoch)),
            )
        case "flush":
            return EMPTY
        case "birth":
            return before._replace(birthmark=last.number)
        case "identity":
            return before._replace(identity=last.number)
        case "stale":
            return before._replace(stale=True)
