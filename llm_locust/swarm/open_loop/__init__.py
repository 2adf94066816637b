"""Open-loop load: arrivals dispatched on time, whatever the servers do."""
