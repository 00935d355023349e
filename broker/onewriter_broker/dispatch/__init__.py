"""Reading: subscriptions, consumers, cursors, redelivery, seek and readers, on top of one log.

A client's command comes in at the top and goes down, what it delivers leaves at the consumer::

    subscriptions -> handle -> registry -> subscription -> shared | single -> consumer -> Channel
                                                |               |
                                                +-> saving      +-> reading -> TopicLog

The contract of the import linter (pyproject.toml) keeps it so. What comes up, a read that has
ended or a gap that was learned, is a callback.
"""
