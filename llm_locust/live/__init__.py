"""The numbers of a run while it goes: counted on the workers, merged at the master, of bounded size.

Percentiles are those of :mod:`llm_locust.metrics.stats.sketch`, off by its ``RELATIVE_ERROR`` at most.
Nothing here knows Locust or gevent, and every clock is passed in. A report uses the records instead.
"""
