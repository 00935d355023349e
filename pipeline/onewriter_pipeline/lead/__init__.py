"""How the driver of a Spark program leads the topics that it writes: a process beside it, and how it is asked."""
