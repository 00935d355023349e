"""Topics kept in tables: what they look like, committing to them, reading them, proving what they hold."""
