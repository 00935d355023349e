"""Dispatch: subscriptions, consumers, cursors, redelivery, seek and readers, on top of one log.

Commands of clients pass through these modules from left to right; deliveries leave at the consumer:
``subscriptions → handle → registry → subscription → shared | single → consumer → Channel``. The subscription
also uses ``saved_cursors``, and its dispatcher reads the TopicLog through ``readers``. The import linter
checks these directions (pyproject.toml). In the other direction, for example when a read has ended or a gap
was learned, there are callbacks.
"""
