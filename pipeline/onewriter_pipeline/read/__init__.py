"""Reading topics: selects logs and ranges, divides them among tasks, and reads spans as record batches."""
