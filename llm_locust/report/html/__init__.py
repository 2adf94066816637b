"""``report.html``: one page with everything in it, that needs no network."""

from llm_locust.report.html.page import html_report as html_report
