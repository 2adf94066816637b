"""``llm-locust roofline``: bounds of any engine on given GPUs."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from llm_locust.figures.text import clean, count, number, percent, plural
from llm_locust.report.console import NARROWEST, print_parts
from llm_locust.report.output import printing, shown_json
from llm_locust.roofline import DEFAULT_BATCHES, GPUS, Roof, answer, gpu_named, read_model

DESCRIPTION = (
    "Bounds of TTFT, TPOT and tokens/s from a model's bytes and operations over its GPUs' bandwidth and "
    "FLOP/s by data sheet: no engine is faster. Formulas and sources are in the documentation's roofline.md."
)

FORMATS = ("text", "json")

Part = Mapping[str, Any]

_KILO, _MEGA, _GIGA, _TERA = 1e3, 1e6, 1e9, 1e12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust roofline``."""
    parser.add_argument(
        "--gpu",
        required=True,
        metavar="NAME",
        help=f"{', '.join(GPUS)}; or its values in GiB, TB/s and dense TFLOP/s: "
        "memory=80,bandwidth=3.35,bf16=989.5,fp8=1979",
    )
    parser.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="that one copy of the model is on (%(default)s)"
    )
    parser.add_argument(
        "--model",
        type=Path,
        required=True,
        metavar="FILE",
        help="its shape, a YAML file (documentation: roofline.md)",
    )
    parser.add_argument(
        "--input-tokens", type=int, default=512, metavar="N", help="of a prompt (%(default)s)"
    )
    parser.add_argument(
        "--output-tokens", type=int, default=128, metavar="N", help="of an answer (%(default)s)"
    )
    parser.add_argument(
        "--batch",
        type=_batches,
        default=DEFAULT_BATCHES,
        metavar="LIST",
        help=f"sequences decoded at a time ({','.join(map(str, DEFAULT_BATCHES))})",
    )
    parser.add_argument(
        "--memory-utilization",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="of GPU memory, for weights and KV cache (%(default)s)",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="(%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the bounds. Return the exit code, 0 (raises ValueError)."""
    roof = Roof(read_model(args.model), gpu_named(args.gpu), args.gpus)
    found = answer(
        roof,
        input_tokens=args.input_tokens,
        output_tokens=args.output_tokens,
        batches=args.batch,
        memory_utilization=args.memory_utilization,
    )
    with printing():
        if args.format == "json":
            print(shown_json(found, indent=2))
        else:
            print_bounds(found, sys.stdout)
    return 0


def print_bounds(found: Part, file: TextIO, width: int | None = None) -> None:
    """Print the result of :func:`~llm_locust.roofline.answer`.

    Args:
        width: columns; default: the terminal's, or 80 without one.
    """
    gpu = found["gpu"]
    title = f"Roofline of {clean(found['model']['name'])} on {gpu['gpus']:g} × {gpu['name']}"
    head = (Text(title, style="bold"), _facts(found), Text())
    notes = (Text(), *(Text(note, style="dim") for note in _notes(found)))
    print_parts(lambda wide: (*head, _table(found, wide=wide), *notes), file, width)


def _facts(found: Part) -> Table:
    """Terms of the bounds, each with its figures."""
    model, gpu, cache, load = found["model"], found["gpu"], found["kv_cache"], found["load"]
    active = model["active_parameters"] / _GIGA
    mixture = (
        f", {number(active)} of them active ({model['experts_per_token']} of {model['experts']} experts)"
        if model["experts"]
        else ""
    )
    facts = {
        "Model": f"{number(model['parameters'] / _GIGA)} B parameters{mixture}, "
        f"{number(model['weights_bytes'] / _GIGA)} GB in {model['weights']}",
        "A token": f"{number(model['flops_per_token'] / _GIGA)} GFLOP, "
        f"{number(model['flops_per_context_token'] / _MEGA)} MFLOP for each token of its context, "
        f"{number(model['kv_bytes_per_token'] / _KILO)} kB of KV cache",
        "GPUs": f"{number(gpu['bandwidth_bytes_per_s'] / _TERA)} TB/s, "
        f"{number(gpu['peak_flops'] / _TERA)} TFLOP/s dense in {model['arithmetic']}, "
        f"{number(gpu['memory_bytes'] / _GIGA)} GB",
        "KV cache": f"{percent(cache['memory_utilization'])} of memory less weights: "
        f"{count(cache['tokens'])} tokens",
        "Load": f"{plural(load['input_tokens'], 'token')} in, {count(load['output_tokens'])} out: "
        f"{number(load['context'])} of context while decoding, on average",
    }
    grid = Table.grid(padding=(0, 2, 0, 0))
    for label, fact in facts.items():
        grid.add_row(Text(label, style="bold"), Text(fact))
    return grid


_HEADS = (
    *("\nStep", "weights\nGB", "KV\nGB", "memory\nms", "\nTFLOP", "compute\nms", "at least\nms"),
    *("bound\nby", "tokens/s\nof each", "\ntokens/s"),
)
_TEXTS = ("\nStep", "bound\nby")
_WIDE = "tokens/s\nof each"
#: Left out if the widest figures do not fit on a narrow terminal: the milliseconds show the same.
_LEAST_MISSED = "\nTFLOP"


def _table(found: Part, wide: bool) -> Table:
    rows = [
        _row(f"prefill {count(found['prefill']['tokens'])}", found["prefill"], "ttft"),
        *(
            _row(f"batch {count(step['batch'])}{'' if step['fits'] else '*'}", step, "tpot")
            for step in found["decode"]
        ),
        _row(f"full {count(found['saturated']['batch'])}", found["saturated"], "tpot"),
    ]
    table = Table(box=None, padding=(0, 2 if wide else 1, 0, 0), pad_edge=False, header_style="bold")
    widths = [max(map(len, (*head.split("\n"), *cells))) for head, *cells in zip(_HEADS, *rows, strict=True)]
    shown = [i for i, head in enumerate(_HEADS) if wide or head != _WIDE]
    if not wide and sum(widths[i] + 1 for i in shown) - 1 > NARROWEST:
        shown = [i for i in shown if _HEADS[i] != _LEAST_MISSED]
    for i in shown:
        table.add_column(
            Text(_HEADS[i]),
            justify="left" if _HEADS[i] in _TEXTS else "right",
            no_wrap=True,
            min_width=widths[i],
        )
    for row in rows:
        table.add_row(*(Text(row[i]) for i in shown))
    return table


def _row(label: str, step: Part, latency: str) -> tuple[str, ...]:
    return (
        label,
        number(step["weights_bytes"] / _GIGA),
        number(step["kv_bytes"] / _GIGA),
        number(step["memory_ms"]),
        number(step["flops"] / _TERA),
        number(step["compute_ms"]),
        number(step[f"{latency}_ms"]),
        step["bound_by"],
        number(step["user_tps"]) if "user_tps" in step else "",
        number(step["output_tokens_per_s"]) if "output_tokens_per_s" in step else "",
    )


def _notes(found: Part) -> Iterator[str]:
    model, full, ridge = found["model"], found["saturated"], found["ridge_batch"]
    yield "prefill: TTFT at least, of one prompt alone"
    yield "batch: TPOT at least, of so many sequences whose prompts are done"
    yield (
        "full: as many requests as the KV cache holds, prompts computed meanwhile: "
        f"{number(full['requests_per_s'])} a second at most"
    )
    if not all(step["fits"] for step in found["decode"]):
        yield "* more than the KV cache holds"
    if ridge is None:
        yield "decoding is bound by memory at any batch: a token's KV takes longer than its operations"
    else:
        yield f"decoding is bound by FLOP/s from a batch of {count(ridge)} on: tokens/s do not grow further"
    if model["experts"]:
        yield "of the experts those are read that the tokens of a step choose, if they choose evenly"
    if model["embedding_bytes"]:
        yield (
            f"{number(model['embedding_bytes'] / _GIGA)} GB of the weights are the input embedding: a step "
            "looks up a row a token, and neither reads nor multiplies the rest"
        )


def _batches(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a list of batches: write numbers, as 1,8,32'
        ) from None
