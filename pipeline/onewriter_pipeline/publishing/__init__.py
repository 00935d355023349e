"""The former name of ``onewriter_pipeline.publish``; version 0.3 removes it."""
