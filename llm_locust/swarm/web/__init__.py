"""Live numbers in Locust's web UI: a table, charts, reports, ``/metrics``.

:mod:`llm_locust.swarm.display` adds them. Only :mod:`~llm_locust.swarm.web.form` imports Locust.
"""
