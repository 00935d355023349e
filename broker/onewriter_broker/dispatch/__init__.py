"""Reading: subscriptions, consumers, cursors, redelivery, seek and readers, on top of one log."""
