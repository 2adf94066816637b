"""The same requests by the formulas of other tools."""
