"""Tables that store topics: layout, commits, reading, and verification against the log."""
