"""What the audit knows: facts out of logs and tables, what must hold of them, and who held what."""
