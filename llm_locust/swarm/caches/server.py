"""A replica of an experiment over HTTP, and all replicas before and after each stage."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import gevent
from gevent.pool import Pool as Greenlets

from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.pool import Target
from llm_locust.client.request import ask
from llm_locust.client.stream import Call, LlmClient
from llm_locust.core.prefix import PrefixShare, ReplicaCache
from llm_locust.core.record import Outcome
from llm_locust.deployment.exposition import ExpositionError, readings
from llm_locust.deployment.profiler import Answered
from llm_locust.options.settings import Settings
from llm_locust.scenario.request_kind import RequestKind, request_form
from llm_locust.swarm.caches.counters import Counters, counted, counters_of
from llm_locust.swarm.caches.priming import ReplicaError, prepare
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.process.offload import off_the_hub
from llm_locust.swarm.users.connections import kind_headers, make_pool
from llm_locust.wire.headers import secret_texts
from llm_locust.workload.body import one_token
from llm_locust.workload.plan import Workload
from llm_locust.workload.text.prompts import Prompt

#: Most replicas that are prepared at once.
_AT_ONCE = 64

#: Time limit of a page of metrics.
_PAGE_S = 10.0

#: Interval at which the end of the run is looked for.
_LOOK_S = 0.1

#: Outcomes of a request of one token whose prompt was computed: the token may be the end of the answer.
_COMPUTED = (Outcome.OK, Outcome.EMPTY)

#: Pause before a flush that failed is tried again.
_AGAIN_S = 1.0

#: What to do where a server has no route for it.
_NO_FLUSH = "; vLLM has it with VLLM_SERVER_DEV_MODE=1, gateways do not: name the servers by --replica-url"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Server:
    """One replica, as :class:`~llm_locust.swarm.caches.priming.CachingReplica`."""

    url: str
    kind: RequestKind
    settings: Settings
    run: RunInfo
    flush_at: Callable[[str], Answered]
    names: set[str] = field(default_factory=set)  # of the replicas that have answered

    def flush(self) -> None:
        answer = self.flush_at(self.url)
        if answer.status is None or answer.status >= 500:  # busy or starting: both may pass
            gevent.sleep(_AGAIN_S)
            answer = self.flush_at(self.url)
        if not answer.ok:
            hint = _NO_FLUSH if answer.status in (404, 405) else ""
            why = answer.error or f"{answer.status}{hint}"
            raise ReplicaError(f"{self.url}: its prefix cache was not emptied: {answer.path}: {why}")

    def cached(self, prompt: Prompt) -> int | None:
        form = request_form(self.kind, self.run["model"])
        client = self._client()
        call = Call(
            request_id=client.new_request_id(),
            name="primer",
            scheduled_ns=time.time_ns(),
            endpoint=self.kind.endpoint,
            slo_class=self.kind.slo_class,
            model=form.model,
            streamed=form.template.streamed,
            user=0,
        )
        try:
            record = client.post(form.path, one_token(form.template, prompt), call).record
        finally:
            client.routes.close()
        if record.outcome not in _COMPUTED:
            why = record.error or record.status or record.outcome
            raise ReplicaError(f"{self.url}: a request before the stage failed: {why}")
        if record.replica is not None:
            self.names.add(record.replica)
        return record.cached_tokens

    def _client(self) -> LlmClient:
        settings, kind = self.settings, self.kind
        return LlmClient(
            make_pool(self._target, settings),
            sink=lambda _: None,  # no request of the run
            headers=kind_headers(settings, kind),
            timeouts=settings.timeouts,
            max_answer_bytes=settings.max_answer_bytes,
            secrets=(*settings.secrets, *secret_texts(dict(kind.headers))),
            worker="primer",
        )

    @property
    def _target(self) -> Target:
        target = Target.parse(self.url)
        return target if target.base else target.with_base(self.run["base"])

    def counters(self) -> Counters | None:
        """What its page of metrics says; None: nothing."""
        target = Target.parse(self.url)
        pool = make_pool(target, self.settings)
        path = target.base.removesuffix("/v1") + "/metrics"
        try:
            page = ask(pool, "GET", path, kind_headers(self.settings, self.kind), _PAGE_S)
            found = off_the_hub(readings, page.body.decode("utf-8", "replace")) if page.status == 200 else []
        except (ClientError, ExpositionError):
            return None
        finally:
            pool.close()
        return counters_of(found)


class PrefixCaches:
    """The caches of all replicas of one run.

    Args:
        kind: of the run's requests.
        flush_at: empties the cache of one replica, by its URL.
    """

    def __init__(
        self,
        urls: Sequence[str],
        kind: RequestKind,
        settings: Settings,
        run: RunInfo,
        flush_at: Callable[[str], Answered],
    ) -> None:
        self._servers = [_Server(url, kind, settings, run, flush_at) for url in urls]
        self._workload = Workload(kind.spec, kind.seed(run["seed"]), 0, 1, run["salt"])
        self._began: dict[str, Counters | None] = {}

    def prepare(self, prefix: PrefixShare, stage: int, is_over: Callable[[], bool]) -> list[ReplicaCache]:
        """Flush and prime every replica before a stage."""
        workload = self._workload.of_prefix(prefix, stage)

        def one(server: _Server) -> ReplicaCache:
            return prepare(server, prefix, lambda number: off_the_hub(workload.primer, server.url, number))

        made = self._of_all(one, is_over)
        found = [
            each or ReplicaCache(target=server.url, fault="the run ended before its prefix cache was ready")
            for each, server in zip(made, self._servers, strict=True)
        ]
        self._began = dict(zip((s.url for s in self._servers), self._counters(is_over), strict=True))
        return [self._with_engines(cache, server) for cache, server in zip(found, self._servers, strict=True)]

    def _with_engines(self, cache: ReplicaCache, server: _Server) -> ReplicaCache:
        began = self._began[server.url]
        return replace(cache, engines=max(1, len(server.names), 1 if began is None else began.engines))

    def counted(self, caches: Sequence[ReplicaCache], is_over: Callable[[], bool]) -> list[ReplicaCache]:
        """The same with what the replicas' counters have grown by since."""
        now = dict(zip((s.url for s in self._servers), self._counters(is_over), strict=True))
        return [counted(cache, self._began.get(cache.target), now.get(cache.target)) for cache in caches]

    def _counters(self, is_over: Callable[[], bool]) -> list[Counters | None]:
        return self._of_all(_Server.counters, is_over)

    def _of_all(self, act: Callable[[_Server], T], is_over: Callable[[], bool]) -> list[T | None]:
        """Results for every replica; None of those that had none when the run ended."""
        found: dict[str, T] = {}

        def note(server: _Server) -> None:
            found[server.url] = act(server)

        pool = Greenlets(_AT_ONCE)
        doing = gevent.spawn(pool.map, note, self._servers)
        while not is_over() and not doing.ready():
            doing.join(_LOOK_S)
        if doing.ready():
            doing.get()  # what nobody expected is raised
        doing.kill()
        pool.kill()
        return [found.get(server.url) for server in self._servers]
