"""`llm-locust doctor`: checks of this machine and of the server, each with what to change."""
