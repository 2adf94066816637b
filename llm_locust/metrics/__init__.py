"""Every number of a run or a comparison, computed from records and scraped samples."""
