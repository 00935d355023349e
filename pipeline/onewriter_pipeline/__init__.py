"""The data pipeline: reads topics from brokers, keeps them in tables, audits their writers."""
