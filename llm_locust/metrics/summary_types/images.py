"""Images of requests."""

from typing import Annotated

from llm_locust.metrics.summary_types.base import SummaryPart, key

_ALL_IMAGES = "all requests with images, whenever scheduled"
_OK_IMAGES = "ok, scheduled in the window, with images"


class ImageCounts(SummaryPart, frozen=True):
    """Images of a request."""

    n: Annotated[int, key("number of requests", _OK_IMAGES)]
    mean: Annotated[float | None, key("images a request", _OK_IMAGES)]
    p50: Annotated[float | None, key("images a request", _OK_IMAGES)]
    p99: Annotated[float | None, key("images a request", _OK_IMAGES)]
    max: Annotated[float | None, key("images a request", _OK_IMAGES)]


_OF_NUMBER = "ok, scheduled in the window, with so many images"


class FirstTokens(SummaryPart, frozen=True):
    """TTFT of requests with so many images, in milliseconds."""

    n: Annotated[int, key("number of requests with a first token", _OF_NUMBER)]
    mean: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]
    p50: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]
    p99: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]
    max: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]


class ImagesOfNumber(SummaryPart, frozen=True):
    """Requests with the same number of images, or one in a range."""

    images: Annotated[str, key("number of images, or a range such as `3-4`")]
    requests: Annotated[int, key("number of requests", _OF_NUMBER)]
    ttft_ms: FirstTokens
    input_tokens_mean: Annotated[
        float | None, key("tokens of a prompt by the server, those of its images included", _OF_NUMBER)
    ]


class Images(SummaryPart, frozen=True):
    """Images that prompts have."""

    images_per_s: Annotated[
        float | None, key("images of prompts that had been read in the window / seconds", _ALL_IMAGES)
    ]
    pixels_per_s: Annotated[
        float | None, key("their pixels / seconds; null where the size of one is not known", _ALL_IMAGES)
    ]
    per_request: ImageCounts
    pixels_per_image: Annotated[
        float | None, key("Σ pixels / Σ images; null where the size of one is not known", _OK_IMAGES)
    ]
    by_number: list[ImagesOfNumber]
