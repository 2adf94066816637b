"""Services of one Locust process: event loop, clocks, signals, children."""
