"""Options of a load test: their types, their checks, and the settings made of them."""
