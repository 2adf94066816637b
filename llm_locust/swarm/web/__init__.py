"""Live numbers in Locust's web UI: a table, charts, reports, ``/metrics``.

:mod:`~llm_locust.swarm.web.extension` adds them. Except for it, only :mod:`~llm_locust.swarm.web.pages` and
:mod:`~llm_locust.swarm.web.form` import Locust.
"""
