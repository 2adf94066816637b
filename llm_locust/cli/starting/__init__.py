"""How ``llm-locust run`` starts Locust and a simulated server."""
