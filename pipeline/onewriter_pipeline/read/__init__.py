"""From what is asked for to record batches: bounds, ranges, tasks, and the spans they read."""
