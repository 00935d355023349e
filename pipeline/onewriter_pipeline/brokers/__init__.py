"""Talking to the brokers: connections, requests, and the streams they answer with."""
