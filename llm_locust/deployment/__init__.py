"""The system under test: its readiness, its replicas' metrics, the choice of a replica."""
