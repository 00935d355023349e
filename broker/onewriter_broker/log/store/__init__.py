"""The log store: its interface, its implementation on Redis, the Lua scripts, and a fake server for tests."""
