"""One call to a server: sent, read, decoded, recorded. ``http`` has the connections and their clocks."""
