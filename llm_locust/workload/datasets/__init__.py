"""Readers of datasets, one per format. :func:`llm_locust.workload.datasets.load.load_dataset` chooses."""
