"""The schemas of one topic: kept versions, compatibility rules, and checks in a child process."""
