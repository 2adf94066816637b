"""Requests of an examination: bodies, answers as they were seen."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.pool import Pool, Target
from llm_locust.client.http.timeouts import Timeouts
from llm_locust.client.stream import Answer, Call, LiveCall, LlmClient
from llm_locust.core.record import RequestRecord
from llm_locust.doctor.asked import Examination
from llm_locust.wire.reply import Reply
from llm_locust.workload.body import body_template
from llm_locust.workload.text.prompts import Prompt

#: Most bytes of an answer. One of 32 tokens has some KiB.
MAX_ANSWER_BYTES = 1 << 20

#: A question whose answer is long enough.
QUESTION = "Count from 1 to 100 in words."


@dataclass(frozen=True, slots=True)
class SeenStream:
    """One streamed answer.

    Attributes:
        asked_tokens: bound of its length.
        headers: of the response, names in lower case.
        has_done: whether the stream has a line ``data: [DONE]``.
    """

    asked_tokens: int
    record: RequestRecord
    reply: Reply
    headers: Mapping[bytes, bytes]
    has_done: bool


class DoctorRequester:
    """Sends requests over connections of its own to ``target``, with the client of a run.

    Args:
        connect_s: time limit of a connection.
    """

    def __init__(
        self, asked: Examination, target: Target, tls: ssl.SSLContext | None, connect_s: float
    ) -> None:
        self._asked = asked
        self._pool = Pool(target, tls=tls, tls_name=asked.tls_name, connect_timeout_s=connect_s)
        self._client = LlmClient(
            self._pool,
            sink=_ignore,
            headers=asked.headers,
            secrets=asked.secrets,
            max_answer_bytes=MAX_ANSWER_BYTES,
            worker="doctor",
        )

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def stream(self, model: str, tokens: int, limit_s: float) -> SeenStream:
        """Send one request for a stream of ``tokens`` tokens, and wait for its end at most ``limit_s``.

        Failures are in the record. Raises BodyError or PromptError if the endpoint takes no such request.
        """
        asked, client = self._asked, self._client
        template = body_template(asked.endpoint, model, extra_body=asked.body)
        body = template.encode(Prompt(text=QUESTION, asked_output_tokens=tokens))
        call = Call(
            request_id=client.new_request_id(),
            name="doctor",
            scheduled_ns=0,
            endpoint=asked.endpoint,
            model=model,
            asked_output_tokens=tokens,
        )
        route = client.routes.choose(call)
        request = client.request(route, asked.endpoint.path_to(model, stream=True), body, call)
        bounds = Timeouts(first_s=limit_s, gap_s=limit_s, total_s=limit_s)
        live = LiveCall(client, route, request, call, timeouts=bounds)
        parts: list[bytes] = []
        try:
            live.open(keep_body=True)
            while part := live.read():
                parts.append(part)
        except ClientError:
            pass  # it is in the record
        answer = live.conclude()
        lines = b"".join(parts).splitlines()
        done = any(line.startswith(b"data:") and line[5:].strip() == b"[DONE]" for line in lines)
        return SeenStream(tokens, answer.record, answer.reply, dict(live.headers), done)


def _ignore(answer: Answer) -> None:
    """No recorder: what is seen is judged at once."""
