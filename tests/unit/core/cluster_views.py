"""Views of a cluster for tests: three primaries, A, B and C, and R, a replica of A."""

from __future__ import annotations

from onewriter_core.cluster_views import ClusterView, parse_view

A, B, C, R = "a" * 40, "b" * 40, "c" * 40, "d" * 40
PORTS = {A: 1, B: 2, C: 3, R: 4}
THIRDS = {A: "0-5460", B: "5461-10922", C: "10923-16383"}


def line(
    node_id: str,
    flags: str = "master",
    *,
    epoch: int = 1,
    slots: str = "",
    follows: str = "-",
    place: str = "",
) -> str:
    place = place or f"10.0.0.{PORTS[node_id]}:7000@17000"
    return f"{node_id} {place} {flags} {follows} 0 0 {epoch} connected {slots}".rstrip()


def view(me: str, *lines: str) -> ClusterView:
    text = "\n".join(
        each.replace(" master ", " myself,master ").replace(" slave ", " myself,slave ")
        if each.startswith(me)
        else each
        for each in lines
    )
    return parse_view(text, (f"10.0.0.{PORTS[me]}", 7000))


def whole() -> list[str]:
    return [
        *(line(node_id, slots=slots) for node_id, slots in THIRDS.items()),
        line(R, "slave", follows=A),
    ]
