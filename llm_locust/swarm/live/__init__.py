"""Live numbers of a run, sent from workers to the master."""
