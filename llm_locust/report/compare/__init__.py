"""``llm-locust compare``: two runs, or several over time, and what changed beyond noise."""
