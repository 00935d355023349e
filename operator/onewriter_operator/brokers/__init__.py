"""The brokers, over their HTTP interface: telling them what is declared, hearing what they do."""
