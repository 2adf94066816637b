"""llm-locust: a distributed load-testing harness for LLM inference, built on Locust."""
