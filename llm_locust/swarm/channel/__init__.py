"""Messages between workers and master: their types, their checks, and the proof of who sent them."""
