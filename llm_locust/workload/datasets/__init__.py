"""Readers of datasets, one a format. :func:`llm_locust.workload.dataset.load_dataset` chooses."""
