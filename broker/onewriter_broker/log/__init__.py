"""Logs: the store that holds them, one log on its broker, and the appender that writes all logs of a shard."""
