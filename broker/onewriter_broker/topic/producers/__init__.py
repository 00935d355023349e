"""The producers of one topic: what they send, resend and may not send twice, and where leaders are."""
