"""Pages and endpoints added to Locust's web UI, and extensions of its own page."""

from collections.abc import Callable
from typing import Any

import msgspec
from flask import Blueprint, Response, request, send_file
from locust.web import WebUI
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from llm_locust.live.store import SPANS, LiveStore, Span
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.web.assets import asset, templates
from llm_locust.swarm.web.drift import DriftWatch
from llm_locust.swarm.web.fields import group_fields
from llm_locust.swarm.web.numbers import (
    NAMES,
    REPLICAS,
    Feed,
    LiveTable,
    by_name,
    by_replica,
    catalogue,
    fresh_look,
    series_csv,
    status,
    table_csv,
)
from llm_locust.swarm.web.reports import SERVED, ComparisonError, Reports
from llm_locust.swarm.web.stages import StageBoard, columns
from llm_locust.swarm.web.wsgi import fresh_text

_TABLES = {"names": (NAMES, by_name), "replicas": (REPLICAS, by_replica)}

#: Tabs that show a page of this package, with its address relative to Locust's page.
_LINKS = (("Live charts", "llm-charts", "./llm/charts"), ("Reports", "llm-reports", "./llm/reports"))

_DOWNLOADS = (
    ("./llm/names.csv", "Download LLM figures by name CSV"),
    ("./llm/replicas.csv", "Download LLM figures by replica CSV"),
    ("./llm/series.csv?span=run", "Download LLM time series CSV"),
    ("./llm/charts", "Live charts"),
    ("./llm/reports", "Reports of the runs"),
)

#: Nothing of another origin, and no inline script.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


class Pages:
    """Extension of a web UI that does not serve yet. With ``--web-login`` all of it requires the login."""

    def __init__(self, web_ui: WebUI, store: LiveStore, reports: Reports, drift: DriftWatch) -> None:
        self._store = store
        self._reports = reports
        self._drift = drift
        self._look = fresh_look(store)
        self._feed = Feed(store)
        self._metrics = fresh_text(store)
        self._stages = StageBoard(store)
        store.is_watched = True
        self._extended: Response | None = None
        assert web_ui.app is not None
        base = web_ui.app.blueprints["locust"].url_prefix or ""
        blueprint = Blueprint("llm_locust", __name__, url_prefix=base)
        views: dict[str, Callable[..., Response]] = {
            "/metrics": self._on_metrics,
            "/llm/charts": self._on_charts,
            "/llm/series": self._on_series,
            "/llm/series.csv": self._on_series_csv,
            "/llm/stages.csv": self._on_stages_csv,
            "/llm/<any(names, replicas):table>.csv": self._on_table_csv,
            "/llm/reports": self._on_reports,
            "/llm/reports/<run>/<name>": self._on_report,
            "/llm/reports/<run>/so-far/<name>": self._on_report_so_far,
            "/llm/reports/<run>/against/<base>": self._on_comparison,
            "/llm/assets/<name>": self._on_asset,
        }
        for rule, view in views.items():
            guarded = web_ui.auth_required_if_enabled(view)
            blueprint.add_url_rule(rule, view.__name__.removeprefix("_on_"), guarded)
        web_ui.app.register_blueprint(blueprint)
        web_ui.app.after_request(self._extend)
        _extend_template(web_ui.template_args)
        group_fields(web_ui)

    def _on_metrics(self) -> Response:
        return Response(self._metrics(), content_type=CONTENT_TYPE_LATEST)

    def _on_charts(self) -> Response:
        told = catalogue() | {"stages": columns()}
        return _page("charts.html.j2", catalogue=msgspec.json.encode(told).decode())

    def _on_series(self) -> Response:
        span = _span()
        if span is None:
            return _unknown_span()
        answer = self._feed.answer(span, request.args.get("after", ""))
        answer["now"] = status(self._look(), self._drift.alarms)
        answer["stages"] = self._stages.told()
        return Response(msgspec.json.encode(answer), content_type="application/json", headers=_unkept())

    def _on_series_csv(self) -> Response:
        span = _span()
        return (
            _unknown_span()
            if span is None
            else _csv(f"llm-series-{span}", series_csv(self._feed.series(span)))
        )

    def _on_stages_csv(self) -> Response:
        text = self._stages.csv()
        return _text("No stage has ended yet.\n", 404) if text is None else _csv("llm-stages", text)

    def _on_table_csv(self, table: str) -> Response:
        kind, rows_of = _TABLES[table]
        return _csv(f"llm-{table}", table_csv(kind, rows_of(self._look())))

    def _on_reports(self) -> Response:
        running = self._store.run.id if self._store.content.stopped_s is None else ""
        runs = self._reports.runs
        figures = off_the_hub(lambda: {run.id: self._reports.figures(run) for run in runs})
        asked = request.args.get("base", "")
        base = next((run.id for run in runs if run.id == asked and run.is_reported), "")
        return _page(
            "reports.html.j2", runs=runs, figures=figures, files=list(SERVED), running=running, base=base
        )

    def _on_comparison(self, run: str, base: str) -> Response:
        try:
            path = self._reports.comparison(base, run)
        except ComparisonError as e:
            return _text(f"There is no comparison: {e}\n", 503)
        if path is None:
            return _text("There are no two such reports: see the list of reports.\n", 404)
        response = send_file(path, mimetype="text/html; charset=utf-8", max_age=0)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    def _on_report(self, run: str, name: str) -> Response:
        return self._report(run, name, so_far=False)

    def _on_report_so_far(self, run: str, name: str) -> Response:
        return self._report(run, name, so_far=True)

    def _report(self, run: str, name: str, *, so_far: bool) -> Response:
        path = self._reports.file(run, name, so_far=so_far)
        if path is None:
            return _text("There is no such report: see the list of reports.\n", 404)
        response = send_file(path, mimetype=SERVED[name], max_age=0)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    def _on_asset(self, name: str) -> Response:
        found = off_the_hub(asset, name)
        if found is None:
            return _text("There is no such file.\n", 404)
        headers = {"Cache-Control": "private, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
        if not request.accept_encodings.quality("gzip"):
            return Response(
                off_the_hub(lambda: found.plain), content_type=found.content_type, headers=headers
            )
        headers["Content-Encoding"] = "gzip"
        return Response(found.packed, content_type=found.content_type, headers=headers)

    def _extend(self, response: Response) -> Response:
        """Extend Locust's own answers: its page by a script for tabs and fields, its numbers by tables."""
        if response.status_code != 200:
            return response
        if request.endpoint == "locust.index" and response.mimetype == "text/html":
            found = asset("tabs.js")
            assert found is not None
            script = f'<script src="./llm/assets/tabs.js?{found.tag}"></script>'.encode()
            response.set_data(response.get_data().replace(b"</body>", script + b"</body>", 1))
        # Locust caches this answer: it needs to be extended once.
        elif request.endpoint == "locust.request_stats" and response is not self._extended:
            told: dict[str, Any] = msgspec.json.decode(response.get_data())
            look = self._look()
            told["extended_stats"] = [
                *told.get("extended_stats", ()),
                *({"key": table.key, "data": rows_of(look)} for table, rows_of in _TABLES.values()),
            ]
            response.set_data(msgspec.json.encode(told))
            self._extended = response
        return response


def _extend_template(args: dict[str, Any]) -> None:
    """Arguments of Locust's page; a locustfile may have added its own tabs."""
    tables: list[LiveTable] = [NAMES, REPLICAS]
    tabs = [{"title": t.title, "key": t.key} for t in tables] + [{"title": t, "key": k} for t, k, _ in _LINKS]
    additions = {
        "extended_tabs": tabs,
        "extended_tables": [table.structure for table in tables],
        "extended_csv_files": [{"href": href, "title": title} for href, title in _DOWNLOADS],
    }
    for name, added in additions.items():
        args[name] = [*args.get(name, ()), *added]


def _page(template: str, **values: object) -> Response:
    html = templates().get_template(template).render(address=_address, **values)
    return Response(html, headers={"Content-Security-Policy": _POLICY, **_unkept()})


def _address(name: str) -> str:
    """Address of an asset, relative to a page below ``llm/``."""
    found = off_the_hub(asset, name)
    assert found is not None
    return f"./assets/{name}?{found.tag}"


def _unkept() -> dict[str, str]:
    return {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
    }


def _span() -> Span | None:
    asked = request.args.get("span", SPANS[0])
    return next((span for span in SPANS if span == asked), None)


def _unknown_span() -> Response:
    return _text(f"span: {request.args.get('span')!r} is unknown; write one of {', '.join(SPANS)}\n", 400)


def _csv(name: str, text: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"', **_unkept()}
    return Response(text, content_type="text/csv; charset=utf-8", headers=headers)


def _text(text: str, code: int) -> Response:
    return Response(text, code, content_type="text/plain; charset=utf-8", headers=_unkept())
