"""Rows on their way into topics, exactly once: encoded, routed, staged, published as a whole."""
