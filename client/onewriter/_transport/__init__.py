"""Connections to brokers: which broker serves a topic, and requests with their answers.

``lookup`` finds the broker of a topic and keeps one connection per broker. ``connection`` is one socket
with its handshake and keep-alive. ``ends`` are the callbacks of a connection: one for each producer,
consumer and ownership that uses it. ``checks`` asks a broker to prove that it still serves a topic.
"""
