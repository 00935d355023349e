"""The audit: facts about logs and tables, the predicates that they must satisfy, and the history of holders."""
