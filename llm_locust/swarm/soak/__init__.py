"""What a run of hours and days needs: parts after a restart, and room on its disk."""
