"""Owned resources: their records in the store, their present owners, and notices to former owners."""
