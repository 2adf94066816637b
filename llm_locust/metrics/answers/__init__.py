"""Quality of the answers: accuracy and acceptance."""
