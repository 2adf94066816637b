"""What is sent and when: prompts, lengths, datasets, traces, arrivals; and which answers are accepted."""
