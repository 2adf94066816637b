"""Readers of datasets, one a format. :func:`llm_locust.workload.datasets.load.load_dataset` chooses."""
