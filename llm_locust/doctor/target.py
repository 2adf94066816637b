"""The target: its list of models, and the API key."""

from collections.abc import Sequence

from llm_locust.client.models import REFUSALS, Listing
from llm_locust.core.terms import nearest
from llm_locust.doctor.asked import Examination
from llm_locust.doctor.finding import Finding, fail, ok, skipped, warn
from llm_locust.doctor.requests import SeenStream
from llm_locust.report.text import plural, short
from llm_locust.wire.names import clean_name
from llm_locust.wire.secrecy import blanked_name

_SHOWN = 3


def chosen_model(listing: Listing | str, asked: str | None) -> str | None:
    """Model of the requests: the one that is asked for, else the first of the list."""
    if asked is not None or isinstance(listing, str) or not listing.names:
        return asked
    return listing.names[0]


def judge_models(listing: Listing | str | None, asked: Examination) -> Finding:
    """The list of models, or why there is none, and whether the model asked for is in it."""
    if listing is None:
        return skipped("no connection")
    if isinstance(listing, str):
        return fail(listing, "check host, port and path of the URL")
    status = listing.answer.status
    if listing.is_refused:
        return skipped(f"access refused (HTTP {status})")
    if listing.names is None:
        figure = f"{listing.base}/models gives no list (HTTP {status})"
        if asked.model is None:
            return fail(figure, "give --model NAME, and check the path of the URL")
        return ok(f"{figure}; not needed, --model is given")
    names = [short(clean_name(blanked_name(name, asked.secrets)), 60) for name in listing.names]
    figure = f"{plural(len(names), 'model')}: {_shown(names)}" if names else "the list is empty"
    if asked.model is None:
        if len(names) == 1:
            return ok(figure)
        return (
            warn(figure, "give --model NAME: a run needs it")
            if names
            else fail(figure, "load a model, or give --model")
        )
    if asked.model not in listing.names:
        return fail(
            f"{asked.model!r} is not there; {figure}",
            f"{nearest(asked.model, names)}give --model with one of the list",
        )
    return ok(f"{short(clean_name(asked.model), 60)!r} is one of {plural(len(names), 'model')}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def judge_key(listing: Listing | str | None, first: SeenStream | str, *, has_key: bool) -> Finding:
    """Whether the key that is given, or none, is accepted."""
    listed = listing.answer.status if isinstance(listing, Listing) else None
    generated = None if isinstance(first, str) else first.record.status
    refusal = next((status for status in (generated, listed) if status in REFUSALS), None)
    if refusal is not None and not has_key:
        return fail(
            f"absent, and the server asks for one (HTTP {refusal})", "give --api-key-env NAME or --header"
        )
    if refusal is not None:
        return fail(
            f"refused (HTTP {refusal})",
            "check the key: the right variable, not expired, allowed for this model and endpoint",
        )
    if (generated or listed) is None:
        return skipped("no answer")
    if generated is None or generated >= 300:
        return skipped("no request was answered that would need one")
    return ok("accepted, or not looked at" if has_key else "none given, none needed")
