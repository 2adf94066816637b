"""Replicas and servers: fairness, their own metrics, prefill and decode, autoscaling."""

from collections import Counter
from collections.abc import Iterator, Sequence

from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import clean, count, number, percent, plural, seconds, sentence, short
from llm_locust.metrics.deployment.fairness import BEYOND_CHANCE, UNEVEN_CV
from llm_locust.metrics.summary_types.deployment import (
    Autoscaling,
    Fairness,
    GatewayFigures,
    PoolFigures,
    Pools,
    ReplicaHeader,
    ReplicasUp,
    ScaleUp,
    ServerFigures,
    ServerHistogram,
    TestOfChance,
    TtftParts,
)

# --------------------
# How evenly the replicas were used, and what may have made them uneven.
# --------------------


_AMOUNTS = (
    ("requests", "requests"),
    ("output_tokens", "output tokens/s"),
    ("in_flight", "mean in flight"),
    ("ttft", "TTFT p50"),
)
_WITHOUT_OUTPUT = tuple(each for each in _AMOUNTS if each[0] in ("requests", "in_flight"))
_COLUMNS = (
    Column("Fairness", left=True),
    Column("Jain"),
    Column("Gini"),
    Column("variation"),
    Column("by chance"),
)

#: Causes of which a box tells, see :mod:`~llm_locust.report.sections.findings`: a user notices them. The
#: others say how the balancer works.
BOXED = ("out", "slow")

#: Causes that are told; the rest are in summary.json.
MOST_CAUSES = 8


def fairness(summary: Summary) -> Section | None:
    """The indices and likely causes; None for fewer than two replicas, and for replicas that were alike."""
    part = summary.fairness
    if len(summary.replicas) < 2:
        return None
    amounts = _AMOUNTS if not summary.is_without_output else _WITHOUT_OUTPUT
    table = Table(_COLUMNS, tuple(_row(part, key, words) for key, words in amounts)).without_empty(UNDEFINED)
    causes = tuple(_causes(part))
    return None if not causes and _is_even(part) else Section("Fairness", table=table, notes=causes)


def _is_even(part: Fairness) -> bool:
    """Whether the indices would say nothing but that the replicas were alike."""
    tests = (part.chance.requests, part.chance.ttft)
    by_chance = all(test is None or test.p >= BEYOND_CHANCE for test in tests)
    return by_chance and all((part.cv.figure(key) or 0.0) <= UNEVEN_CV for key, _ in _AMOUNTS)


def _row(part: Fairness, key: str, words: str) -> TableRow:
    chance = {"requests": part.chance.requests, "ttft": part.chance.ttft}
    return TableRow(
        (
            words,
            number(part.figure(key)),
            number(part.gini.figure(key)),
            percent(part.cv.figure(key)),
            _chance(chance.get(key)),
        )
    )


def _chance(tested: TestOfChance | None) -> str:
    """The p-value; below one in a million its digits say nothing more."""
    if tested is None:
        return UNDEFINED
    return "p < 1e-6" if tested.p < 1e-6 else f"p {number(tested.p)}"


def _causes(part: Fairness) -> Iterator[Line]:
    causes = [cause for cause in part.causes if cause.kind not in BOXED]
    for cause in causes[:MOST_CAUSES]:
        yield Line(clean(cause.text), Tone.WARN, verbatim=True)
    if len(causes) > MOST_CAUSES:
        yield Line(f"{count(len(causes) - MOST_CAUSES)} more causes in summary.json", Tone.FAINT)


def naming(part: Fairness) -> Iterator[Line]:
    """What told the replicas apart, where it was not a header that names each of them."""
    named = [each for each in part.headers if each.answers]
    for better in (each for each in named[1:] if each.name == part.better_header):
        yield Line(_better(named[0], better), Tone.WARN, verbatim=True)
    if part.named_by == "peer":
        yield Line("no response named its replica: distinguished by connection address", Tone.FAINT)
    if part.named_by == "target":
        yield Line("sent directly to each target: this run chose how requests are distributed", Tone.FAINT)
    if part.unnamed:
        yield Line(_unnamed(part.unnamed), Tone.FAINT)


def _better(used: ReplicaHeader, better: ReplicaHeader) -> str:
    """That one header names a single replica, and which names several."""
    name = clean(better.name)
    return (
        f"every answer has {clean(used.name)}: {clean(used.value)}, but {name} names {better.values} "
        f"replicas: use --replica-header {name}"
    )


def _unnamed(n: int) -> str:
    """Answered by nobody, as a rule: the balancer found no replica, or the connection broke before."""
    which = "1 request has" if n == 1 else f"{count(n)} requests have"
    return f"{which} no replica: no answer named one"


# --------------------
# What the servers said of themselves, the gateway before them, and the energy that the answers took.
# --------------------


MOST_ROWS = 20

#: Less of the window scraped than this is worth a line.
LEAST_COVERED = 0.95

_NAME_LENGTH = 64
_MIB = 1 << 20
_SERVER_COLUMNS = (
    Column("Server", left=True, verbatim=True),
    Column("role", left=True),
    Column("mean", over="running"),
    Column("max", over="running", wide=True),
    Column("mean", over="waiting"),
    Column("max", over="waiting", wide=True),
    Column("max", over="KV cache"),
    Column("prefix hits"),
    Column("preempted"),
    Column("length", over="accepted"),
    Column("share", over="accepted"),
    Column("ms", over="KV transfer"),
    Column("MiB", over="KV transfer", wide=True),
    Column("failed", over="KV transfer"),
    Column("TTFT ms"),
    Column("GPU"),
    Column("W"),
    Column("no page"),
)


def servers(summary: Summary) -> Section | None:
    """The figures by target, and of all; None where nothing was scraped, nor should have been."""
    part = summary.server
    if part is None:
        return None
    targets = part.targets
    failure = [Line(clean(part.failure), Tone.WARN, verbatim=True)] if part.failure else []
    if not targets:
        return Section("Servers", tuple(failure)) if failure else None
    rows = [_server_row(target, short(clean(target.name), _NAME_LENGTH)) for target in targets[:MOST_ROWS]]
    if len(targets) > 1 and part.pools is None:
        rows.append(_server_row(part.total, "all"))
    table = Table(_SERVER_COLUMNS, tuple(rows)).without_empty()
    notes = (*failure, *_gateway(part.gateway), *_gaps(targets), *_left_out(len(targets)))
    return Section("Servers", table=table, notes=notes)


def energy(summary: Summary) -> Section | None:
    """Energy by token and by request, and what a watt and a GPU gave; None where no GPU was watched."""
    part = summary.energy
    if part is None:
        return None
    if isinstance(part, str):
        return Section("Energy", (Line(f"no figures: {clean(part)}", Tone.WARN, verbatim=True),))
    watt, gpu = part.per_watt, part.per_gpu
    by = "by their energy counters" if part.by_counter == part.gpus else "by power samples"
    lines = (
        f"{plural(part.gpus, 'GPU')}: {number(part.power_w)} W, {number(part.joules)} J in the window, {by}",
        sentence(
            [
                _figure(part.joules_per_output_token, "J per output token"),
                _figure(part.joules_per_request, "J per request"),
                _figure(part.joules_per_good_request, "J per good request"),
            ]
        ),
        sentence(
            [
                _figure(watt.output_tokens_per_s, "output tokens/s per watt"),
                _figure(watt.goodput_requests_per_s, "good requests/s per watt"),
                _figure(gpu.output_tokens_per_s, "output tokens/s per GPU"),
                _figure(gpu.goodput_requests_per_s, "good requests/s per GPU"),
            ]
        ),
    )
    return Section("Energy", tuple(Line(line) for line in lines if line))


def _server_row(target: ServerFigures, name: str) -> TableRow:
    return TableRow(
        (
            name,
            target.role or "",
            _known(target.running_mean),
            _known(target.running_max),
            _known(target.waiting_mean),
            _known(target.waiting_max),
            _share(target.kv_cache_usage_max),
            _share(_hits(target)),
            count(target.preemptions) if target.preemptions else "",
            _known(target.acceptance_length),
            _share(target.acceptance_rate),
            *_kv_transfers(target),
            _known(target.ttft_ms.mean if target.ttft_ms else None),
            _share(target.gpu_utilisation_mean),
            _known(target.power_w_mean),
            f"{count(target.failed)} of {count(target.scrapes)}" if target.failed else "",
        )
    )


def _kv_transfers(target: ServerFigures) -> tuple[str, str, str]:
    """Mean time of a transfer, mean MiB of one, and how many failed."""
    found = target.kv_transfer_ms
    each = target.kv_transfer_bytes / found.n if found and found.n and target.kv_transfer_bytes else None
    failed = count(target.kv_transfers_failed) if target.kv_transfers_failed else ""
    return _known(found.mean if found else None), _known(each / _MIB if each else None), failed


def _hits(target: ServerFigures) -> float | None:
    by_counts = target.prefix_cache_hit_ratio
    return target.prefix_cache_hit_rate_mean if by_counts is None else by_counts


def _known(value: float | None) -> str:
    """Nothing for what a server does not tell: a column that none tells is left out."""
    return "" if value is None else number(value)


def _share(ratio: float | None) -> str:
    return "" if ratio is None else percent(ratio)


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{number(value)} {unit}"


def _gateway(part: GatewayFigures | None) -> Iterator[Line]:
    if part is None:
        return
    rtt = f" − round trip {number(part.rtt_ms)}" if part.rtt_ms is not None else ""
    yield Line(
        f"gateway and balancer: {number(part.gateway_ms)} ms of a mean TTFT (client "
        f"{number(part.client_ttft_ms)} − servers {number(part.server_ttft_ms)}{rtt})"
    )
    if not part.same_requests:
        yield Line(
            f"the servers saw {count(part.server_n)} first tokens, the client "
            f"{count(part.client_n)}: other clients use them, or some are "
            "not scraped, so the difference compares different requests",
            Tone.WARN,
        )


def _gaps(targets: Sequence[ServerFigures]) -> Iterator[Line]:
    """The targets that gave no page now and then, or were not asked all of the time."""
    failed = [target for target in targets if target.failed]
    if failed:
        scrapes, of = sum(target.failed for target in failed), sum(target.scrapes for target in failed)
        who = plural(len(failed), "server")
        yield Line(f"{count(scrapes)} of {count(of)} scrapes of {who} returned no metrics page", Tone.WARN)
    answering = [target for target in targets if target.failed != target.scrapes]
    covered = [target.covered for target in answering if target.covered is not None]
    if covered and min(covered) < LEAST_COVERED:
        yield Line(f"scraped over only {percent(min(covered))} of the window", Tone.WARN)


def _left_out(targets: int) -> Iterator[Line]:
    if targets > MOST_ROWS:
        yield Line(f"{count(targets - MOST_ROWS)} more in summary.json", Tone.FAINT)


# --------------------
# Prefill and decode servers by role, and what is wrong with them.
# --------------------


_MB = 1e6
_POOLS_COLUMNS = (
    Column("Role", left=True),
    Column("servers"),
    Column("prompt", over="tokens/s"),
    Column("generated", over="tokens/s"),
    Column("running"),
    Column("waiting"),
    Column("queue ms"),
    Column("max", over="KV cache"),
    Column("preempted"),
    Column("evenness"),
)

#: Findings that are told; the rest are in summary.json.
_MOST_FINDINGS = 8


def pools(summary: Summary) -> Section | None:
    """The figures of each role; None where no server has one."""
    server = summary.server
    if server is None or server.pools is None:
        return None
    part = server.pools
    found = [Line(clean(each.text), Tone.WARN, verbatim=True) for each in part.findings[:_MOST_FINDINGS]]
    if len(part.findings) > _MOST_FINDINGS:
        found.append(Line(f"{count(len(part.findings) - _MOST_FINDINGS)} more in summary.json", Tone.FAINT))
    table = Table(_POOLS_COLUMNS, tuple(_pools_row(pool) for pool in part.by_role)).without_empty()
    notes = (*found, *_transfers(part), *_ttft(part.ttft), *_sources(server.targets))
    return Section("Prefill and decode", table=table, notes=notes)


def _pools_row(pool: PoolFigures) -> TableRow:
    figures = pool.figures
    return TableRow(
        (
            pool.role,
            count(pool.servers),
            number(pool.prompt_tokens_per_s),
            number(pool.generation_tokens_per_s),
            number(figures.running_mean),
            number(figures.waiting_mean),
            number(figures.queue_ms.mean if figures.queue_ms else None),
            percent(figures.kv_cache_usage_max),
            count(figures.preemptions) if figures.preemptions is not None else UNDEFINED,
            number(pool.evenness) if pool.servers > 1 else "",
        )
    )


def _transfers(part: Pools) -> Iterator[Line]:
    """KV transfers of the role whose servers count them; failures of the other one are the same ones."""
    by_time = [pool for pool in part.by_role if (took := pool.figures.kv_transfer_ms) and took.n]
    if not any(pool.figures.kv_transfers_failed for pool in by_time):
        by_time += [pool for pool in part.by_role if pool.figures.kv_transfers_failed]
    for pool in by_time:
        found, failed = pool.figures.kv_transfer_ms, pool.figures.kv_transfers_failed
        n, moved, rate = (
            (found.n if found else 0),
            pool.figures.kv_transfer_bytes,
            pool.kv_transfer_bytes_per_s,
        )
        facts = [
            f"{count(round(n))} KV transfers" if found else "KV transfers",
            f"mean {number(found.mean)} ms" if found and n else "",
            _bounds(found, "p50"),
            _bounds(found, "p99"),
            f"{number(moved / n / _MB)} MB each" if moved and n else "",
            f"{number(rate / _MB)} MB/s" if rate is not None else "",
            f"{count(failed)} failed" if failed is not None else "",
        ]
        yield Line(sentence(facts), Tone.WARN if failed else Tone.PLAIN)


def _bounds(found: ServerHistogram | None, name: str) -> str:
    """The bucket that a percentile is in: a server's histogram tells no more."""
    edges = getattr(found, f"{name}_bounds") if found else None
    if edges is None:
        return ""
    low, high = edges
    return f"{name} over {number(low)} ms" if high is None else f"{name} {number(low)} to {number(high)} ms"


def _ttft(part: TtftParts | None) -> Iterator[Line]:
    if part is None:
        return
    rest_ms = part.client_ms - part.prefill_ms - part.transfer_ms
    if rest_ms < 0 or not part.same_requests:
        text = "the parts of the TTFT are not known: the prefill servers saw other requests, or parts overlap"
        yield Line(text, Tone.FAINT)
        return
    yield Line(
        f"mean TTFT {number(part.client_ms)} ms = {number(part.prefill_ms)} at prefill servers, queue "
        f"included, + {number(part.transfer_ms)} KV transfer + {number(rest_ms)} at decode servers and on "
        "the way"
    )


def _sources(targets: Sequence[ServerFigures]) -> Iterator[Line]:
    """Who says which role a server has."""
    found = Counter(target.role_source for target in targets if target.role and target.role_source)
    said = [f"{clean(source)} ({plural(n, 'server')})" for source, n in found.items()]
    yield Line(f"roles by {', '.join(said)}", Tone.FAINT, verbatim=True)


# --------------------
# Replicas that came and went, and how long they took after each step up of the load.
# --------------------


#: Rows of the table, and changes that the line names.
MOST_STEPS, MOST_CHANGES = 20, 12

_AUTOSCALING_COLUMNS = (
    Column("Autoscaling", left=True),
    Column("at"),
    Column("replicas"),
    Column("first new"),
    Column("last new"),
    Column("requests", over="until then", wide=True),
    Column("missed", over="until then", wide=True),
    Column("good lost"),
    Column("recovered"),
)

_UNITS = {"users": "users", "rate": "requests/s"}


def autoscaling(summary: Summary) -> Section | None:
    """None where the number of replicas did not change."""
    part = summary.autoscaling
    if part is None:
        return None
    rows = tuple(map(_autoscaling_row, part.steps[:MOST_STEPS]))
    return Section(
        "Autoscaling",
        lines=(Line(_over_time(part.replicas)),) if not rows else (),
        table=Table(_AUTOSCALING_COLUMNS, rows) if rows else None,
        notes=tuple(_notes(part, summary.fairness.named_by)),
    )


def _over_time(changes: list[ReplicasUp]) -> str:
    shown = [f"{count(each.replicas)} from {seconds(each.at_s)}" for each in changes[:MOST_CHANGES]]
    more = len(changes) - MOST_CHANGES
    return "replicas: " + ", ".join(shown) + (f" and {plural(more, 'change')} more" if more > 0 else "")


def _autoscaling_row(step: ScaleUp) -> TableRow:
    load = f"{number(step.asked_before)} → {number(step.asked)} {_UNITS.get(step.kind, '')}".rstrip()
    came = f"{count(step.replicas_before)} + {count(step.new)}"
    cells = (
        *(load, seconds(step.at_s), came, seconds(step.first_new_s), seconds(step.last_new_s)),
        *(count(step.requests), _missed(step), _lost(step), _recovered(step)),
    )
    return TableRow(cells, Tone.PLAIN if step.new else Tone.WARN)


def _missed(step: ScaleUp) -> str:
    return f"{count(step.missed)} ({percent(step.missed / step.requests)})" if step.requests else UNDEFINED


def _lost(step: ScaleUp) -> str:
    return UNDEFINED if step.good_lost is None else count(step.good_lost)


def _recovered(step: ScaleUp) -> str:
    bound = step.recovered_at_least_s
    return seconds(step.recovered_s) if bound is None else f"≥ {seconds(bound)}"


def _notes(part: Autoscaling, named_by: str | None) -> Iterator[Line]:
    if part.steps:
        yield Line(_over_time(part.replicas))
    else:
        yield Line("the load had no step up, so there is no time to scale", Tone.FAINT)
    if idle := [step for step in part.steps[:MOST_STEPS] if not step.new]:
        yield Line(f"no new replica answered after {plural(len(idle), 'step')}", Tone.WARN)
    if len(part.steps) > MOST_STEPS:
        yield Line(f"{count(len(part.steps) - MOST_STEPS)} more steps in summary.json", Tone.FAINT)
    if part.unrecorded:
        missing = plural(part.unrecorded, "request")
        yield Line(f"{missing} have no record: good lost is a lower bound", Tone.WARN)
    if any(step.kind == "users" and step.good_lost is not None for step in part.steps):
        what = "good lost: against as many good requests per user and second as before the step"
        yield Line(what, Tone.FAINT)
    if part.unsure:
        late = plural(part.unsure, "replica")
        yield Line(f"{late} answered late and too rarely to tell whether it was there before", Tone.WARN)
    if part.steps and part.judged_by == "outcome":
        yield Line("no SLO: good requests are all that did not fail", Tone.FAINT)
    named = "address" if named_by == "peer" else "replica"
    yield Line(f"a {named} counts from its first answer to its last", Tone.FAINT)
