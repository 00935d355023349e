"""One machine: the supervisor, the embedded store, the data directory, child processes."""
