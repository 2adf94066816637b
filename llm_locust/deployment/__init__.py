"""The system under test from its side: whether it is ready, what its replicas say, which of them is asked."""
