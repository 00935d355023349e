"""Authentication and authorization: which identity a client proves, and what that identity may do."""
