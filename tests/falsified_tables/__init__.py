"""Tables that are falsified in many ways, and what finds each way."""
