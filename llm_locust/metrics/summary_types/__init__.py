"""The type of every section of ``summary.json``: one struct a section, one sentence a key."""
