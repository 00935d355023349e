"""Quotas: how much one subject, or one namespace, may take of a broker and of its store. Pure."""
