"""A Locust user with a genuine OpenAI client."""

import gc
import time
from urllib.parse import parse_qsl
from weakref import WeakSet

import httpx2
from locust.env import Environment
from openai import OpenAI

from llm_locust.client.openai_sdk import MeasuredTransport, RequestFields
from llm_locust.client.recording import Call
from llm_locust.swarm.users.traffic import request_headers
from llm_locust.swarm.users.users import LlmUser
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.headers import header_templates

#: The SDK requires a key; a server that needs none ignores it.
_NO_KEY = "none"


class OpenAIUser(LlmUser):
    """User for any code written for the openai SDK.

    ``self.client`` is an ``openai.OpenAI`` whose transport is replaced: each request is a
    :class:`~llm_locust.core.record.RequestRecord` with the kernel's timestamps, however late the code that
    iterates the stream is. It never retries.

    A stream that is abandoned before its end is ``cancelled``: at once if it is closed (``with``, or
    ``stream.close()``), with the user's next request if it is merely dropped, and at the end of the run at
    the latest.

    ``--connection-reuse`` and ``--targets`` apply as for every user, although the SDK itself gets only the
    first target.

    ::

        class Asker(OpenAIUser):
            @task
            def ask(self) -> None:
                stream = self.client.chat.completions.create(
                    model=self.model, messages=[...], stream=True, stream_options={"include_usage": True}
                )
                for chunk in stream:
                    ...
    """

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._client: OpenAI | None = None
        self._answers: WeakSet[httpx2.Response] = WeakSet()

    @property
    def model(self) -> str:
        """The model of this run."""
        return self.session.run["model"]

    @property
    def client(self) -> OpenAI:
        session = self.session
        if self._client is None:
            transport = MeasuredTransport(session.client, self._new_call, session.client.heads)
            target = session.client.pool.target
            own = header_templates(request_headers(session.settings, target=target)).values()
            self._client = OpenAI(
                base_url=target.url,
                default_query=dict(parse_qsl(target.query.removeprefix("?"))),
                api_key=session.settings.api_key or _NO_KEY,
                default_headers={h.name: h.texts[0] for h in own if h.fixed}
                | session.settings.slo_headers(self.slo_class),
                max_retries=0,
                http_client=httpx2.Client(
                    transport=transport,
                    trust_env=False,
                    follow_redirects=False,
                    event_hooks={"request": [self._on_request], "response": [self._on_response]},
                ),
            )
        return self._client

    def _on_request(self, _: httpx2.Request) -> None:
        self.session.backoffs.wait(self.number)
        if any(not answer.is_closed for answer in self._answers):
            # The SDK's stream and its iterator refer to each other: once dropped, it stays open until the
            # collector finds it. A stream that the user still holds is unaffected.
            gc.collect()

    def _on_response(self, answer: httpx2.Response) -> None:
        self._answers.add(answer)
        if self._session is not None:  # whether or not another request may start
            self._session.answers.add(answer)

    def _new_call(self, request_id: str, endpoint: Dialect | None, fields: RequestFields) -> Call:
        return Call(
            request_id=request_id,
            name=self.request_name or (endpoint.name if endpoint is not None else "other"),
            scheduled_ns=time.time_ns(),
            endpoint=endpoint,
            slo_class=self.slo_class,
            model=fields.model,
            streamed=bool(fields.stream),
            user=self.number,
            check=self.judge.check(None) if endpoint is not None and endpoint.generates else None,
            asked_output_tokens=fields.max_completion_tokens or fields.max_tokens or fields.max_output_tokens,
        )
