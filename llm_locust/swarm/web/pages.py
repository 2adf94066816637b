"""Pages and endpoints added to Locust's web UI, their assets, and extensions of its own page."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from flask import Blueprint, Response, request, send_file
from jinja2 import Environment, PackageLoader, StrictUndefined
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from llm_locust.live.series import SPANS, Span
from llm_locust.live.store import LiveStore
from llm_locust.options.table import OPTION
from llm_locust.report.html.shell import packed_plotly
from llm_locust.swarm.drift import DriftWatch
from llm_locust.swarm.process.event_loop import Fresh, off_the_hub
from llm_locust.swarm.web.reports import SERVED, ComparisonError, Reports
from llm_locust.swarm.web.series_feed import Feed
from llm_locust.swarm.web.stage_table import StageBoard, columns
from llm_locust.swarm.web.status import catalogue, look_at, status
from llm_locust.swarm.web.tables import NAMES, REPLICAS, LiveTable, by_name, by_replica, series_csv, table_csv
from llm_locust.swarm.web.wsgi import fresh_text

if TYPE_CHECKING:
    from locust.web import WebUI

# --- Scripts and styles of the pages, and plotly's, from the packages; one address for each content


_PACKAGE = "llm_locust.swarm.web"

_CSS, _SCRIPT = "text/css; charset=utf-8", "text/javascript; charset=utf-8"
_TYPES = {
    **dict.fromkeys(("house.css", "live.css"), _CSS),
    **dict.fromkeys(("live.js", "theme.js", "tabs.js", "plotly.js"), _SCRIPT),
}


@dataclass(frozen=True, slots=True)
class Asset:
    """``tag`` identifies the content: a browser may cache the answer of an address with it forever."""

    content_type: str
    packed: bytes  # gzip
    tag: str

    @property
    def plain(self) -> bytes:
        return gzip.decompress(self.packed)


@cache
def asset(name: str) -> Asset | None:
    """Return a file by its name; None if there is none."""
    if name not in _TYPES:
        return None
    packed = packed_plotly() if name == "plotly.js" else gzip.compress(_content(name), mtime=0)
    return Asset(_TYPES[name], packed, tag=blake2b(packed, digest_size=8).hexdigest())


def _content(name: str) -> bytes:
    if name == "house.css":  # the reports' own: all pages look alike
        return (resources.files("llm_locust.report.html") / "templates" / "style.css").read_bytes()
    return (resources.files(_PACKAGE) / "templates" / name).read_bytes()


@cache
def templates() -> Environment:
    return Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


# --------------------
# The fields of Locust's form for the options of a load test: their groups, and a text below each.
#
# Locust's form has them in one list and with their help as labels, which are cut off at the width of a field.
# --------------------


#: Names of options by what they are for; what most runs need comes first.
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Limits": ("slo", "gate", "warmup"),
        "What is sent": (
            *("model", "input_tokens", "output_tokens", "dataset"),
            *("shared_prefix", "models", "images"),
        ),
        "Requests at a rate": ("request_rate", "arrival", "max_in_flight"),
        "End of the run": ("num_requests", "stop_when", "drain", "note"),
        "Several loads in one run": (
            *("sweep", "find", "stage_time", "until", "repeat", "first_load", "precision", "max_stages"),
        ),
    }
)

#: FieldGroup of the options that a locustfile adds.
OTHERS = "Options of the locustfile"

#: A help that is longer is cut at its first semicolon; the whole is shown when the mouse is over it.
LONGEST_HELP = 160

Args = dict[str, Any]


class FormField(msgspec.Struct, frozen=True):
    """``help`` is shown below the field, ``more`` when the mouse is over that."""

    name: str
    help: str
    more: str = ""


class FieldGroup(msgspec.Struct, frozen=True):
    title: str
    fields: list[FormField]


def group_fields(web_ui: "WebUI") -> None:
    """Put the fields of Locust's form in groups from now on, each with a short label."""
    update: Callable[[], None] = web_ui.update_template_args

    def update_and_group() -> None:
        update()
        args: Args = web_ui.template_args
        options: dict[str, Args] = args.get("extra_options") or {}
        groups = grouped({name: each.get("help_text") or "" for name, each in options.items()})
        ordered = [field.name for group in groups for field in group.fields]
        args["extra_options"] = {name: options[name] | {"help_text": ""} for name in ordered}
        args["llm_groups"] = msgspec.to_builtins(groups)

    web_ui.update_template_args = update_and_group  # type: ignore[method-assign]


def grouped(helps: Mapping[str, str]) -> list[FieldGroup]:
    """The groups of a form.

    Args:
        helps: the text of each field, by its name, as argparse has it.
    """
    others = [name for name in helps if name not in OPTION]
    named: dict[str, Sequence[str]] = {**GROUPS, OTHERS: others}
    placed = {name for names in named.values() for name in names}
    named |= {"More": [name for name in helps if name not in placed]}
    groups = [
        FieldGroup(title, [_field(name, helps[name]) for name in names if name in helps])
        for title, names in named.items()
    ]
    return [group for group in groups if group.fields]


def _field(name: str, help_text: str) -> FormField:
    text = help_text.replace("%%", "%")
    short = text.split("; ")[0] if len(text) > LONGEST_HELP else text
    return FormField(name, short, "" if short == text else text)


# --- Pages and endpoints


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

    def __init__(self, web_ui: "WebUI", store: LiveStore, reports: Reports, drift: DriftWatch) -> None:
        self._store = store
        self._reports = reports
        self._drift = drift
        self._look = Fresh(lambda: off_the_hub(look_at, store.at_rest()))
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
        charts = catalogue() | {"stages": columns()}
        return _page("charts.html.j2", catalogue=msgspec.json.encode(charts).decode())

    def _on_series(self) -> Response:
        span = _span()
        if span is None:
            return _unknown_span()
        answer = self._feed.answer(span, request.args.get("after", ""))
        answer["now"] = status(self._look(), self._drift.alarms)
        answer["stages"] = self._stages.table()
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
            stats: dict[str, Any] = msgspec.json.decode(response.get_data())
            look = self._look()
            stats["extended_stats"] = [
                *stats.get("extended_stats", ()),
                *({"key": table.key, "data": rows_of(look)} for table, rows_of in _TABLES.values()),
            ]
            response.set_data(msgspec.json.encode(stats))
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
