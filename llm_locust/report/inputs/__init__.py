"""What a report is made of: records, scraped metrics, the last live figures."""
