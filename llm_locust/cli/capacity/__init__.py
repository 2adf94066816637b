"""Commands on what several loads show."""
