"""The broker: sockets, sessions, topic runners, the log store, dispatch and administration.

Layers, top to bottom: cli, app, listener, session, runner | publish | dispatch, log | anchor, core.
"""
