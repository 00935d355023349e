"""The HTTP client of the brokers: connections, requests, and the streams of blocks."""
