"""Leading a topic: waiting for the grant, one term, and term after term.

``lead`` waits for the grant, ``leadership`` is one term, ``candidacy`` leads again and again. ``deadline``
is the time until which a leader may serve without asking. ``announcement`` is the message in which a
leader says who it is, and ``search`` finds it. ``transaction`` publishes to several topics atomically.
"""
