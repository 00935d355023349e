"""onewriter's own HTTP API. docs/http.md lists its routes."""
