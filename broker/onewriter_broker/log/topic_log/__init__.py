"""One log on its broker: pending entries, the newest blocks, guards, atomic publishes, range reads."""
