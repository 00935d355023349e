"""Owning resources, a request of Kafka's "Single Reader/Writer" proposal: names, and the decision."""
