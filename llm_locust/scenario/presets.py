"""The usual cases of load with their usual lengths and limits: ``preset: chat``.

A class's keys win over the class's preset. Every option of the run, whichever way it is given, wins
over a preset at the scenario's top level. Lengths are lognormal, as recorded lengths are to good
approximation: few are far longer than the rest. Limits are what a person or a program at the other
end notices.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Lengths as :func:`~llm_locust.workload.lengths.tokens.parse_lengths` takes them, limits as
    :func:`~llm_locust.metrics.requests.slo.parse_slo`. An empty ``slo`` sets no limit on a single request."""

    input_tokens: str
    output_tokens: str
    slo: str


CHAT = Preset(input_tokens="lognormal:1020,0.8", output_tokens="lognormal:129,1.0", slo="ttft=500ms")
"""A person types and reads along.

Lengths: medians of the conversation part of Microsoft's Azure LLM inference trace of 2023 (Splitwise,
ISCA 2024), 1,020 and 129 tokens. Limit: half a second to the first token is well below the second after
which a person's thought is interrupted (Nielsen, Usability Engineering, 1993). People read about
240 words a minute (Brysbaert 2019), some 5 tokens/s, so that no limit of TPOT is needed as a rule;
``tpot=50ms`` is one for answers that are skimmed.
"""

CODE = Preset(input_tokens="lognormal:1500,0.8", output_tokens="lognormal:13,1.0", slo="ttft=100ms")
"""An editor completes code while a person types.

Lengths: medians of the coding part of the same trace, 1,500 and 13 tokens: much context, a few words.
Limit: at 100 ms an answer still feels immediate (Nielsen), and the next key is struck some 200 ms after
the last.
"""

VOICE = Preset(input_tokens="lognormal:500,0.6", output_tokens="lognormal:40,0.6", slo="ttft=100ms")
"""A spoken dialogue.

Lengths: instructions with some turns of dialogue, and an answer of two spoken sentences, which are
assumptions. Limit: speakers leave about 200 ms between two turns (Stivers et al., PNAS 2009). Speech
recognition, synthesis and the network share that time with the model, which leaves it below 100 ms.
Speech is slow, some 150 words a minute, so that TPOT is no concern.
"""

AGENT = Preset(input_tokens="lognormal:6000,0.8", output_tokens="lognormal:150,0.8", slo="ttft=1s tpot=25ms")
"""A program calls the model step after step and uses tools between.

Lengths: with means of 8,260 and 207 tokens near those of the tool and agent trace of Mooncake (FAST 2025),
where prompts of 8,600 tokens get answers of 180. Limits: steps add up and nobody reads along, so that
both parts count: ten steps of 1 s + 150 x 25 ms take 48 s.
"""

BATCH = Preset(input_tokens="lognormal:2000,0.6", output_tokens="lognormal:300,0.6", slo="")
"""Documents are worked off and nobody waits for a single one: extraction, labelling, evaluation.

Lengths: a page or two in, a paragraph or two out, which are assumptions. No limit on a single request: what
counts is throughput, as in ``gate: output_tps>2000``.
"""

PRESETS: Mapping[str, Preset] = {"chat": CHAT, "code": CODE, "voice": VOICE, "agent": AGENT, "batch": BATCH}
