"""Options of a load test: their rows and checks, the settings made of them, the rules that stop a run."""
