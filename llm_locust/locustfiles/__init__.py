"""Locustfiles that the package ships; ``llm-locust run`` starts them."""
