"""How the driver of a Spark program leads the topics that it writes: a separate leader process, and its client."""
