"""Which broker may write to which bucket of which dataset, and who else is alive."""
