"""Reports of runs and comparisons: read, analysed, and written as text, pages and files of other programs."""
