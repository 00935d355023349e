"""The data pipeline: reads topics from brokers, copies them into tables, audits their writers, and publishes rows."""
