"""How much of a log is kept: retention, trimming, the index of its segments."""
