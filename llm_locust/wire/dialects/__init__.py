"""APIs of inference servers: one module each has its requests and the readers of its answers."""
