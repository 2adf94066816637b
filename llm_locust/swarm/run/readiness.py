"""Replicas and arms of a run: found by name or address, waited for, and checked for what a run needs.

A run that starts with five of eight replicas would measure another deployment.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import gevent
import gevent.socket
import msgspec
from gevent.pool import Pool as Greenlets

from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.target import Target
from llm_locust.client.probing import Plain, ask
from llm_locust.client.recording import ReplicaNames
from llm_locust.core.manifest import CanaryFacts
from llm_locust.deployment.replicas import (
    EVERY_S,
    Check,
    Clock,
    NotReadyError,
    Replicas,
    count_replicas,
    look,
    wait_until_ready,
)
from llm_locust.deployment.targets import arm_facts
from llm_locust.options.deployment import DNS, patience_s
from llm_locust.options.settings import Settings, UsageError
from llm_locust.swarm.users.traffic import make_pool, request_headers
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.foreign_text import blanked
from llm_locust.wire.payload import DECODE_ERRORS
from llm_locust.workload.body import body_template, one_token
from llm_locust.workload.prompts import Prompt

if TYPE_CHECKING:
    pass
from llm_locust.swarm.run.canary import Canaries, CanaryError
from llm_locust.swarm.run.servers import AT_ONCE
from llm_locust.swarm.run.target_check import RefusedError, check_target, settings_of_arm

logger = logging.getLogger(__name__)


_QUESTION = "Are you there?"

_CLOCK = Clock(sleep=gevent.sleep)


class _NoAccessError(Exception):
    """Access is refused: waiting does not change that."""


def wait_for_replicas(
    host: str, settings: Settings, endpoint: Dialect, canaries: Canaries, *, within_s: float | None = None
) -> Replicas:
    """Find the replicas, wait until all of them serve, and send each the run's canaries.

    Args:
        host: target of the load, if there are no targets.
        endpoint: endpoint of the load's requests.
        canaries: go to the host if no replicas are waited for.
        within_s: time limit below that of the settings.

    Raises:
        UsageError: some are missing after the time limit (which, and why), a name has no address, or access
            or a canary is refused.
    """
    deployment = settings.deployment
    bound_s = patience_s(deployment)
    if bound_s is not None and within_s is not None:
        bound_s = min(bound_s, within_s)
    probe = _Probe(
        settings, endpoint, canaries, min(settings.run.timeouts.first_s, max(bound_s or 0.0, EVERY_S))
    )
    named = deployment.targets or deployment.replica_urls
    try:
        if deployment.arms:
            waited_s = 0.0 if bound_s is None else _wait_for_arms(settings, endpoint, bound_s)
            return replace(ask_arms(settings, endpoint, canaries), waited_s=waited_s)
        if bound_s is None:
            return Replicas(known=(host,), canaries=tuple(_send_to_host(host, settings, canaries)))
        began_s = _CLOCK.now_s()
        expected = deployment.expect_replicas
        urls = _addresses(named or (host,), bound_s, expected if named else None)
        left_s = bound_s - (_CLOCK.now_s() - began_s)
        ready = wait_until_ready(
            urls, probe.check, within_s=left_s, together=probe.together, clock=_CLOCK, tell=logger.info
        )
        if expected is not None and not named:
            left_s = bound_s - (_CLOCK.now_s() - began_s)
            ready = count_replicas(
                expected, lambda: probe.replica(host), within_s=left_s, clock=_CLOCK, tell=logger.info
            )
    except (NotReadyError, _NoAccessError) as e:
        raise UsageError(f"the load does not start: {e}") from e
    waited_s = _CLOCK.now_s() - began_s
    what = "1 replica is" if len(ready.names) == 1 else f"all {len(ready.names)} replicas are"
    logger.info("%s ready after %.1f s", what, waited_s)
    targets = tuple(probe.bases[url] for url in urls) if deployment.targets else ()
    sent = tuple(chain.from_iterable(probe.canaries.values()))
    known = tuple(urls) if named else (host,)
    return Replicas(targets, known, ready.names, waited_s, sent)


def _send_to_host(host: str, settings: Settings, canaries: Canaries) -> list[CanaryFacts]:
    """Send the canaries to a host (raises UsageError)."""
    if not canaries.kinds:
        return []
    found = check_target(host, settings, [kind.endpoint for kind in canaries.kinds])
    return canaries.send(Target.parse(host).with_base(found.base), found.model)


class _Probe:
    """Queries replicas; ``bases`` is the API base found for those that serve, ``canaries`` those sent."""

    def __init__(self, settings: Settings, endpoint: Dialect, canaries: Canaries, timeout_s: float) -> None:
        self.bases: dict[str, str] = {}
        self.canaries: dict[str, list[CanaryFacts]] = {}
        self._canaries = canaries
        self._settings = settings
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._headers = request_headers(settings, endpoint)
        self._names = ReplicaNames(settings.run.replica_headers, settings.secrets)
        self._refusal: str | None = None
        self.check = look(self._health, self._complete)

    def together(self, check: Check, urls: Sequence[str]) -> list[str | None]:
        """Results of ``check`` for each URL, run concurrently (raises _NoAccessError)."""
        found: list[str | None] = Greenlets(AT_ONCE).map(check, urls)
        if self._refusal is not None:
            raise _NoAccessError(self._refusal)
        return found

    def replica(self, url: str) -> str | None:
        """Name of the replica in its answer to one real request; raises as :meth:`_one_token`."""
        try:
            answer, _ = self._one_token(url)
        except ValueError:
            if self._refusal is not None:
                raise _NoAccessError(self._refusal) from None
            raise
        return self._names.read(answer.headers)

    def _health(self, url: str) -> int:
        target = Target.parse(url)
        # Servers have it next to their API, not below its version.
        at = target.base.rfind("/v1") if target.base.endswith("/v1") else len(target.base)
        return self._ask(target, "GET", target.base[:at] + "/health").status

    def _complete(self, url: str) -> str | None:
        if not self._canaries.kinds:
            _, self.bases[url] = self._one_token(url)
            return None
        target, model = self._found(url)
        try:
            self.canaries[url] = self._canaries.send(target, model, self._timeout_s)
        except CanaryError as e:
            if e.permanent:
                self._refusal = str(e)
            return str(e)
        self.bases[url] = target.url
        return None

    def _one_token(self, url: str) -> tuple[Plain, str]:
        """Return the answer to a request of one token, and the URL of the API that gave it.

        Raises:
            ValueError: it is not a valid answer; UsageError, a subclass, if the model cannot be found.
            _NoAccessError: access is refused.
        """
        target, model = self._found(url)
        path = target.path(self._endpoint.path_to(model, stream=False))
        answer = self._ask(target, "POST", path, _one_token_body(self._settings, self._endpoint, model))
        if answer.status != 200:
            raise ValueError(f"a request of one token was answered by {answer.status}")
        try:
            reply = msgspec.json.decode(answer.body)
        except DECODE_ERRORS:
            reply = None
        if not isinstance(reply, dict) or reply.get("error"):
            raise ValueError("a request of one token was answered by something that is not an answer")
        return answer, target.url

    def _found(self, url: str) -> tuple[Target, str]:
        """The API of a replica, and its model; raises as :meth:`_one_token`."""
        try:
            found = check_target(url, self._settings, [self._endpoint])
        except RefusedError as e:
            self._refusal = str(e)
            raise ValueError(self._refusal) from e
        return Target.parse(url).with_base(found.base), found.model

    def _ask(self, target: Target, method: str, path: str, body: bytes = b"") -> Plain:
        pool = make_pool(target, self._settings)
        try:
            return ask(pool, method, path, self._headers, self._timeout_s, body)
        except ClientError as e:
            raise ValueError(blanked(str(e), self._settings.secrets)) from e
        finally:
            pool.close()


def _one_token_body(settings: Settings, endpoint: Dialect, model: str) -> bytes:
    extra = {k: v for k, v in settings.workload.extra_body.items() if k not in ("stream", "stream_options")}
    return one_token(body_template(endpoint, model, stream=False, extra_body=extra), Prompt(text=_QUESTION))


def _addresses(urls: Sequence[str], within_s: float, expected: int | None) -> list[str]:
    """Expand each host that has several addresses to one URL per address.

    Args:
        expected: number of addresses to wait for.

    Raises:
        NotReadyError: there are fewer, or a host has no address.
    """
    end_s = _CLOCK.now_s() + within_s
    while True:
        try:
            found = list(dict.fromkeys(one for url in urls for one in _one_by_one(url)))
            missing = None if len(found) >= (expected or 1) else f"{len(found)} of {expected} addresses"
        except OSError as e:
            missing = f"{e.strerror or e}"
        if missing is None:
            return found
        if _CLOCK.now_s() + EVERY_S > end_s:
            raise NotReadyError(
                f"{', '.join(urls)}: {missing} after {within_s:.0f} s; the name must have one address per "
                "replica, as that of a headless Service"
            )
        _CLOCK.sleep(EVERY_S)


def _one_by_one(url: str) -> Iterable[str]:
    if not url.startswith(DNS):
        return (url,)
    url = url.removeprefix(DNS)
    target = Target.parse(url)
    entries = gevent.socket.getaddrinfo(target.host, target.port, 0, gevent.socket.SOCK_STREAM)
    hosts = sorted({str(entry[4][0]) for entry in entries})
    return [f"{target.scheme}://{f'[{h}]' if ':' in h else h}:{target.port}{target.base}" for h in hosts]


# --- Arms: each is waited for, and asked, as its own requests are


def _wait_for_arms(settings: Settings, endpoint: Dialect, bound_s: float) -> float:
    """Wait until every arm has answered a request of one token, with its headers and model; return how long.

    Raises:
        NotReadyError, _NoAccessError: one has not within ``bound_s``, or refuses access.
    """
    began_s = _CLOCK.now_s()
    timeout_s = min(settings.run.timeouts.first_s, max(bound_s, EVERY_S))
    for arm in settings.deployment.arms:
        own = settings_of_arm(settings, arm)
        probe = _Probe(own, endpoint, Canaries((), own), timeout_s)
        left_s = bound_s - (_CLOCK.now_s() - began_s)
        wait_until_ready(
            [arm.url], probe.check, within_s=left_s, together=probe.together, clock=_CLOCK, tell=logger.info
        )
    return _CLOCK.now_s() - began_s


def ask_arms(settings: Settings, endpoint: Dialect, canaries: Canaries) -> Replicas:
    """Reach every arm and send it the canaries (raises UsageError)."""
    arms = settings.deployment.arms
    served = served_arms(settings, endpoint)
    asked = zip(arms, served, strict=True)
    sent = [canaries.send(Target.at(base), model, arm=arm) for arm, (base, model) in asked]
    return Replicas(
        known=tuple(dict.fromkeys(arm.url for arm in arms)),
        canaries=tuple(chain.from_iterable(sent)),
        arms=arm_facts(arms, served),
    )


def served_arms(settings: Settings, endpoint: Dialect) -> list[tuple[str, str]]:
    """The base URL of each arm's API, and its model.

    Raises:
        UsageError: an arm cannot be reached, or two have different models although neither asks for its own.
    """
    served, unasked = [], {}
    for arm in settings.deployment.arms:
        try:
            found = check_target(arm.url, settings_of_arm(settings, arm), [endpoint])
        except UsageError as e:
            raise UsageError(f"arm {arm.name!r}: {e}") from e
        served.append((Target.parse(arm.url).with_base(found.base).url, found.model))
        if arm.model is None:
            unasked[arm.name] = found.model
    if len(set(unasked.values())) > 1:
        names = " and ".join(f"{name!r} has {model!r}" for name, model in unasked.items())
        raise UsageError(
            f"--arm: {names}: serve one model under one name, so that tokens are comparable, or give each "
            "arm its model in the scenario"
        )
    return served
