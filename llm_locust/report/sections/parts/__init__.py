"""What differs between parts of a run that are set against each other."""
