"""Services of one Locust process: event loop, health, signals, children, log."""
