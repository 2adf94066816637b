"""The live numbers in Locust's web UI: a table, charts, reports, ``/metrics``.

:mod:`~llm_locust.swarm.web.extension` adds them; nothing else here but
:mod:`~llm_locust.swarm.web.pages` and :mod:`~llm_locust.swarm.web.form` imports Locust.
"""
