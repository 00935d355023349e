"""Addresses of the store that a test can redirect, as a Service's name can be."""

from __future__ import annotations

from pathlib import Path

from tests.servers import StoreServer


class StoreLink:
    """An address of the store that leads to another server after ``lead_to``."""

    def __init__(self, folder: Path, name: str, server: StoreServer) -> None:
        self._path = folder / name
        self.url = f"unix://{self._path}"
        self.lead_to(server)

    def lead_to(self, server: StoreServer) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.symlink_to(server.path)
        fresh.replace(self._path)


def drop_connections(server: StoreServer) -> None:
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
