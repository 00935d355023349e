"""Which topics this broker serves: catalog, loading, declarations, policies, termination."""
