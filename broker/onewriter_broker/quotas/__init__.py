"""Quotas: how much one subject, or one namespace, may use of a broker and its store. Pure."""
