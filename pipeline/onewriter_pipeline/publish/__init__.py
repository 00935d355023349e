"""Publishing rows to topics exactly once: encoding, routing, staging, and atomic publishes."""
