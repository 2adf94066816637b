"""Messages between workers and master: their types, their checks, and the proof of their sender."""
