"""Prefix caches of an experiment's replicas: emptied and filled before each stage, their counters read."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import gevent
from gevent.pool import Pool as Greenlets

from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.target import Target
from llm_locust.client.probing import ask
from llm_locust.client.recording import Call
from llm_locust.core.manifest import MOST_COUNTED, PrefixShare, ReplicaCache
from llm_locust.core.record import Outcome
from llm_locust.deployment.replicas import Answered
from llm_locust.deployment.server_metrics import ExpositionError, Reading, readings
from llm_locust.options.settings import Settings
from llm_locust.scenario.request_kind import RequestKind, request_form
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.run.canary import client_beside
from llm_locust.swarm.run.servers import AT_ONCE
from llm_locust.swarm.users.traffic import kind_headers, make_pool
from llm_locust.workload.body import one_token
from llm_locust.workload.plan import Workload
from llm_locust.workload.prompts import Prompt

# --------------------
# Counters of a replica's prefix caches before and after a stage, and what they have grown by.
#
# Several engines may answer at one URL, each with counters of its own. The growth is that of each counter,
# because in a sum the growth of one engine hides the restart of another.
# --------------------


#: Counters of tokens that were found in the cache, and looked for: vLLM's. SGLang counts all tokens of the
#: prompts that it has answered, and shows no counter of those found before the first one is.
_HITS, _QUERIES, _PROMPTS = "prefix_cache_hits", "prefix_cache_queries", "prompt_tokens"

#: Labels of the engines that answer at one URL: vLLM's and SGLang's.
_ENGINE_LABELS = ("engine", "dp_rank")

#: Values of the counters of one name, by their labels.
Values = Mapping[frozenset[tuple[str, str]], float]


@dataclass(frozen=True, slots=True)
class Counters:
    """Tokens found in the prefix caches of a URL, and looked for, since its start; and how many engines."""

    hits: Values
    queries: Values
    engines: int = 1


class _UncountedError(Exception):
    """Counters that do not say what was found; one line that says why."""


def counters_of(found: Sequence[Reading]) -> Counters | None:
    """The counters of a page of metrics; None where it has none."""
    hits, queries, prompts = (_values(found, name) for name in (_HITS, _QUERIES, _PROMPTS))
    looked_for = queries or prompts
    if not hits or not looked_for:
        return None
    engines = {tuple(map(each.labels.get, _ENGINE_LABELS)) for each in found}.difference([(None, None)])
    return Counters(hits, looked_for, max(1, len(engines)))


def counted(cache: ReplicaCache, before: Counters | None, now: Counters | None) -> ReplicaCache:
    """A cache with what its counters grew by, or with why that is not known; as it was if it has none."""
    if before is None and now is None:
        return cache
    try:
        if before is None or now is None:
            missing = "before" if before is None else "after"
            raise _UncountedError(f"its counters were not there {missing} the stage")
        hits, queries = _growth(before, now)
    except _UncountedError as e:
        return replace(cache, uncounted=f"{cache.target}: {e}")
    return replace(cache, hits=hits, queries=queries)


def _growth(before: Counters, now: Counters) -> tuple[float, float]:
    """Tokens found and looked for since ``before`` (raises _UncountedError).

    A counter of hits that was not there has begun at 0. One of queries that was not there is of an engine
    whose cache was not prepared, and that may have counted before.
    """
    if now.queries.keys() - before.queries.keys():
        raise _UncountedError("an engine appeared during the stage")
    hits, queries = _grown(before.hits, now.hits), _grown(before.queries, now.queries)
    found, looked_for = math.fsum(hits.values()), math.fsum(queries.values())
    if found > looked_for or any(hits[labels] > queries[labels] for labels in hits.keys() & queries.keys()):
        raise _UncountedError(
            f"it counted more tokens found ({found:,.0f}) than looked for ({looked_for:,.0f})"
        )
    return found, looked_for


def _grown(before: Values, now: Values) -> Values:
    """Growth of each counter (raises _UncountedError)."""
    if before.keys() - now.keys():
        raise _UncountedError("a counter disappeared during the stage: an engine ended or was started again")
    grown = {labels: value - before.get(labels, 0.0) for labels, value in now.items()}
    if any(each < 0 for each in grown.values()):
        raise _UncountedError("a counter fell during the stage: an engine was started again")
    if not math.fsum(grown.values()) <= MOST_COUNTED:
        raise _UncountedError(f"a counter grew by more than {MOST_COUNTED:g} tokens, or by no number")
    return grown


def _values(found: Sequence[Reading], name: str) -> Values:
    values: dict[frozenset[tuple[str, str]], float] = {}
    for each in found:
        if each.name == name:
            labels = frozenset(each.labels.items())
            values[labels] = values.get(labels, 0.0) + each.value
    return values


# --------------------
# Flush of a replica's prefix cache, with a proof that it worked, and the shared prefixes sent to it.
#
# A server may answer a flush by 200 and do nothing: vLLM does, while requests are in flight. So one prompt
# is sent before the flush and after it. What the second answer says was cached, beyond the first, is what
# the flush has left. The third says whether the server reports hits at all.
# --------------------


class ReplicaError(Exception):
    """A replica that did not do what was asked of it; one line that says what."""


class CachingReplica(Protocol):
    """A replica whose cache is prepared."""

    @property
    def url(self) -> str: ...

    def flush(self) -> None:
        """Empty the prefix cache (raises ReplicaError)."""
        ...

    def cached(self, prompt: Prompt) -> int | None:
        """Send a prompt; return how many of its tokens were cached, None if the answer does not say.

        Raises:
            ReplicaError: it was not answered.
        """
        ...


#: A prompt of a stage's length for one replica: with the shared prefix of a number, or None: without.
Primer = Callable[[int | None], Prompt]


def prepare(replica: CachingReplica, prefix: PrefixShare, primer: Primer) -> ReplicaCache:
    """Flush the cache, look whether it is empty, and send each shared prefix once."""
    found = ReplicaCache(target=replica.url)
    probe = primer(None)
    try:
        found = replace(found, before=replica.cached(probe))
        replica.flush()
        found = replace(found, after=replica.cached(probe))
        if (found.after or 0) > (found.before or 0):
            raise ReplicaError(
                f"{replica.url}: the flush did nothing: {found.after:,} tokens of a prompt that was sent "
                "before it were cached after it; other requests may have been in flight"
            )
        found = replace(found, again=replica.cached(probe))
        for number in range(prefix.prefixes if prefix.tokens else 0):
            replica.cached(primer(number))
            found = replace(found, primed=number + 1)
    except ReplicaError as e:
        return replace(found, fault=str(e))
    return found


# --- A replica of an experiment over HTTP, and all replicas before and after each stage


#: Time limit of a page of metrics.
_PAGE_S = 10.0

#: Interval at which the end of the run is looked for meanwhile.
_END_LOOK_S = 0.1

#: Outcomes of a request of one token whose prompt was computed: the token may be the end of the answer.
_COMPUTED = (Outcome.OK, Outcome.EMPTY)

#: Pause before a flush that failed is tried again.
_AGAIN_S = 1.0

#: What to do where a server has no route for it.
_NO_FLUSH = "; vLLM has it with VLLM_SERVER_DEV_MODE=1, gateways do not: name the servers by --replica-url"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Server:
    """One replica, as :class:`CachingReplica`."""

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
        target = Target.parse(self.url)
        target = target if target.base else target.with_base(self.run["base"])
        client = client_beside(self.kind, self.settings, target, self.settings.run.timeouts, "primer")
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

        pool = Greenlets(AT_ONCE)
        doing = gevent.spawn(pool.map, note, self._servers)
        while not is_over() and not doing.ready():
            doing.join(_END_LOOK_S)
        if doing.ready():
            doing.get()  # what nobody expected is raised
        doing.kill()
        pool.kill()
        return [found.get(server.url) for server in self._servers]
