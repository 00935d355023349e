"""The log store: one interface (api), two implementations (redis, memory), one contract suite."""
