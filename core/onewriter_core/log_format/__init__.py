"""The log format (docs/log-format.md): names, limits, hash and packed stream, for brokers and readers alike."""
