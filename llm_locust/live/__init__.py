"""Numbers of a run while it goes: counted on the workers, merged at the master, of bounded size.

Percentiles come from :mod:`llm_locust.metrics.stats.sketch`, with a relative error of at most its
``RELATIVE_ERROR``. Nothing here depends on Locust or gevent, and every clock is passed in. A report uses the
records instead.
"""
