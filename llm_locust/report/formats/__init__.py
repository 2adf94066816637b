"""A report in the formats of other programs: each a function that gives the text of a file."""
