"""``report.html``: one page with everything in it, that needs no network."""
