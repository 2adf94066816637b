"""Helm chart of a run, made from the kustomize overlays."""
