"""What several loads show together: the search, the knee, how a spike passed."""
