"""Owned resources: their names and the decision table. The idea is from Kafka's "Single Reader/Writer" proposal."""
