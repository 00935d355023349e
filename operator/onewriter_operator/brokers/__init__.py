"""The connection to the brokers over HTTP: sends declarations, receives the topics' state."""
