"""What tells one kind of requests from others: a user class's attributes, or a class of a scenario."""

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from llm_locust.deployment.targets import Arm, Prefix
from llm_locust.metrics.limits import Slo
from llm_locust.scenario.document import TrafficClass
from llm_locust.scenario.readers import DatasetSource
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.headers import header_template
from llm_locust.workload.answers import OwnFunction, Validator
from llm_locust.workload.body import BodyTemplate
from llm_locust.workload.conversations import ConversationPlan, parse_plan
from llm_locust.workload.datasets import EXPECTED_FIELD, Dataset, DatasetError, LoadDataset, load_dataset
from llm_locust.workload.draws import seed_of
from llm_locust.workload.plan import DEFAULT_OUTPUT_TOKENS, WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestKind:
    """One kind of requests. Whatever a process keeps for it is kept under ``key``.

    Attributes:
        source: kinds of one source share its prompts: the lines of a dataset come once for all of them.
        stream: sets its draws apart from those of other sources.
        name: of its requests in every table; default: the endpoint's.
        slo_class: the class that they are counted in.
        headers: over the run's of the same name; values may be templates.
        expected: how the answers that a dataset expects are compared.
        plan: of conversations; None for single requests.
        weight, rate: as in :class:`TrafficClass`.
    """

    key: Hashable
    spec: WorkloadSpec
    source: Hashable
    stream: str = ""
    name: str | None = None
    slo_class: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    validators: Sequence[Validator | OwnFunction] = ()
    expected: str | None = None
    consistency: bool = False
    plan: ConversationPlan | None = None
    slo: Slo | None = None
    weight: float | None = 1.0
    rate: str | None = None

    @property
    def endpoint(self) -> Dialect:
        return self.spec.endpoint

    def seed(self, run_seed: int) -> int:
        """The seed of its draws; the run's own for a kind without a stream of its own."""
        return seed_of(run_seed, self.stream) if self.stream else run_seed


@dataclass(frozen=True, slots=True)
class RequestForm:
    """What all requests of a kind have in common at one target.

    Attributes:
        path: below the base of the API.
        prefix: what prompts begin with; see :class:`~llm_locust.deployment.targets.Arm`.
    """

    model: str
    template: BodyTemplate
    path: str
    prefix: Prefix | None = None


def request_form(kind: RequestKind, model: str, arm: Arm | None = None) -> RequestForm:
    """The form of a kind's requests for a model, at an arm if there are any (raises BodyError)."""
    body = {} if arm is None else arm.body
    spec = replace(kind.spec, extra_body={**kind.spec.extra_body, **body}) if body else kind.spec
    template = spec.body_template(model)
    model = template.sent["model"] if isinstance(template.sent.get("model"), str) else model
    path = kind.endpoint.path_to(model, stream=template.streamed)
    if arm is None:
        return RequestForm(model, template, path)
    return RequestForm(model, template, arm.path or path, arm.prefix)


def models_of(kind: RequestKind, model: str) -> tuple[str, ...]:
    """Models that a kind's requests ask for, given the run's."""
    return (model,) if kind.spec.models is None else kind.spec.models.names


def check_models(kinds: Sequence[RequestKind], model: str | None, arms: Sequence[Arm]) -> None:
    """Check that models are said in one place; ``model`` is the run's (raises ValueError)."""
    own = [kind.spec.models is not None for kind in kinds]
    if model is not None and all(own):
        raise ValueError(
            "--model beside --models, which has the models of all requests: leave out one of them"
        )
    arm = next((arm.name for arm in arms if arm.model is not None), None)
    if arm is not None and any(own):
        raise ValueError(f"--models: arm {arm!r} has a model of its own; leave out one of them")


def kinds_of(
    classes: Sequence[TrafficClass], run: WorkloadSpec, load: LoadDataset = load_dataset
) -> tuple[RequestKind, ...]:
    """The classes of a scenario as kinds: what a class leaves open is the run's.

    Args:
        load: reads datasets.

    Raises:
        ValueError: a dataset that cannot be used, or lengths, endpoint and dataset that do not fit together
            (DatasetError, WorkloadError, BodyError ...), with the class's name.
    """
    datasets: dict[tuple[str, str | None, str], Dataset] = {}
    kinds = []
    for found in classes:
        try:
            _check_answers(found)
            spec = _spec(found, run, datasets, load)
            _check_images(found, spec)
            spec.body_template("")
        except ValueError as e:
            raise ValueError(f"class {found.name!r}: {e}" if found.name else str(e)) from e
        kinds.append(_kind(found, spec))
    return tuple(kinds)


def _check_answers(found: TrafficClass) -> None:
    """Refuse what needs the text of an answer, for an endpoint that has none."""
    needs = [name for name in ("conversation", "validators", "expected") if getattr(found, name)]
    if needs and not DIALECTS[found.endpoint].generates:
        raise ValueError(f"{needs[0]} needs answers with text, and the {found.endpoint} endpoint has none")


def _check_images(found: TrafficClass, spec: WorkloadSpec) -> None:
    if spec.images is not None and spec.dataset is not None and found.conversation is not None:
        raise ValueError(
            f"images with a conversation over dataset {spec.dataset.path!r}: only one of its messages would "
            "have some; leave out one of the three"
        )


def _kind(found: TrafficClass, spec: WorkloadSpec) -> RequestKind:
    talk = found.conversation
    return RequestKind(
        key=("class", found.name),
        spec=spec,
        source=("class", found.name),
        stream=found.name,
        name=found.request_name or None,
        slo_class=found.name,
        headers=found.headers,
        validators=found.validators,
        expected=None if found.expected is None else found.expected.match,
        plan=None
        if talk is None
        else parse_plan(
            turns=talk.turns, think_time=talk.think_time, patience=talk.patience, history=talk.history
        ),
        slo=found.slo,
        weight=found.weight,
        rate=found.rate,
    )


def _spec(
    found: TrafficClass,
    run: WorkloadSpec,
    datasets: dict[tuple[str, str | None, str], Dataset],
    load: LoadDataset,
) -> WorkloadSpec:
    dataset, order = run.dataset, run.order
    if found.dataset is not None:
        dataset, order = _dataset(found.dataset, found, datasets, load), found.dataset.order
    elif found.input_tokens is not None:
        dataset, order = None, "sequential"
    return replace(
        run,
        endpoint=DIALECTS[found.endpoint],
        inputs=found.inputs,
        stream=found.stream,
        dataset=dataset,
        order=order,
        input_tokens=None if dataset is not None else found.input_tokens or run.input_tokens,
        output_tokens=found.output_tokens
        or run.output_tokens
        or (None if dataset else DEFAULT_OUTPUT_TOKENS),
        extra_body={**run.extra_body, **found.body},
        images=found.images or run.images,
        shared_prefix=found.shared_prefix or run.shared_prefix,
        unique_head=run.unique_head if found.unique_head is None else found.unique_head,
        models=found.models or run.models,
    )


def _dataset(
    source: DatasetSource,
    found: TrafficClass,
    datasets: dict[tuple[str, str | None, str], Dataset],
    load: LoadDataset,
) -> Dataset:
    """The file's content, read once for all classes that take it in the same way."""
    key = source.file, source.format, EXPECTED_FIELD if found.expected is None else found.expected.field
    if key not in datasets:
        datasets[key] = load(*key)
    if found.expected is not None and all(p.expected is None for p in datasets[key].prompts):
        raise DatasetError(f"dataset {source.file!r}: no line has {key[2]!r}, the expected answer")
    return datasets[key]


# --- Request headers that tell a gateway the limits of a class: ``x-slo-ttft-ms: 500``
#
# The endpoint pickers of llm-d and of the Gateway API Inference Extension read two, of TTFT and of TPOT, in
# milliseconds. Their names begin with ``x-slo`` up to llm-d 0.7, and with ``x-llm-d-slo`` from 0.8 on,
# which reads the older ones too (https://llm-d.ai/docs/api-reference/epp-http-headers).


#: The latencies whose limits have a header.
METRICS = ("ttft", "tpot")


def parse_prefix(text: str) -> str:
    """What the headers' names begin with, in lower case (raises ValueError)."""
    prefix = text.strip().lower().rstrip("-")
    if not prefix or "{" in prefix:
        raise ValueError(f"{text[:40]!r} is no start of a header name: write such as x-slo")
    header_template(_header(prefix, "ttft"), "")
    return prefix


def slo_headers(prefix: str | None, limits_s: Mapping[str, float]) -> dict[str, str]:
    """The headers of requests with these limits, metric -> seconds; none without a prefix."""
    if prefix is None:
        return {}
    return {
        _header(prefix, metric): f"{limits_s[metric] * 1e3:.12g}" for metric in METRICS if metric in limits_s
    }


def check_slo_headers(
    prefix: str,
    kinds: Sequence[RequestKind],
    limits_s: Mapping[str, Mapping[str, float]],
    given: Iterable[str],
) -> None:
    """Check that the headers can say what the requests are judged by.

    Args:
        limits_s: class -> metric -> limit, ``""`` for those of the run.
        given: names of the headers that the run and its arms set themselves.

    Raises:
        ValueError: no kind has such a limit, a header is set in two places, or lines of a dataset have a
            class with other limits than their kind.
    """

    def headers_of(name: str) -> dict[str, str]:
        return slo_headers(prefix, limits_s.get(name, limits_s[""]))

    if not any(headers_of(kind.slo_class) for kind in kinds):
        raise ValueError(
            f"--slo-headers {prefix}: no request has a limit for {' or '.join(METRICS)}; give one by --slo, "
            "or by the slo of a class"
        )
    names = {_header(prefix, metric) for metric in METRICS}
    check_once(f"--slo-headers {prefix}", names, kinds, given)
    for kind in kinds:
        dataset = kind.spec.dataset
        for line in () if dataset is None else dataset.prompts:
            if line.slo_class and headers_of(line.slo_class) != headers_of(kind.slo_class):
                raise ValueError(
                    f"--slo-headers {prefix}: a line of the dataset is of class {line.slo_class[:40]!r}, "
                    "whose limits differ from those that its request would name"
                )


def check_once(option: str, names: Set[str], kinds: Sequence[RequestKind], given: Iterable[str]) -> None:
    """Check that no header of ``names``, which an option sends, is given too (raises ValueError)."""
    for header in (*given, *(header for kind in kinds for header in kind.headers)):
        if header.lower() in names:
            raise ValueError(f"{option}: the header {header!r} is given too; leave out one of them")


def _header(prefix: str, metric: str) -> str:
    return f"{prefix}-{metric}-ms"
