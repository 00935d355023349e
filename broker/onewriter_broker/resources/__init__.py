"""Ownerships of resources: what is stored of them, who holds them now, and who is told."""
