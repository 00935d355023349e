"""One log on its broker: entries on their way in, the newest blocks, guards, atomic publishes, range reads."""
