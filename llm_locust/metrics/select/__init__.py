"""Selection of requests by an expression."""
