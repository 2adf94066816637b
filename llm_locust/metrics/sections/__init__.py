"""Sections of a summary that judge a run as a whole: validity, steadiness, completeness, failures."""
