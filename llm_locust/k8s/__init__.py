"""Kubernetes: the kustomize base and overlays (``manifests``), and overlays made from a scenario."""
