"""Open-loop load: requests are sent at their times, whatever the servers do."""
