"""What a process is in a run: master, worker, or both in one; each made of the same few parts."""
