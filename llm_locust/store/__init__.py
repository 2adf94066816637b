"""Run directory: frames of record batches during the run, Parquet and JSON at its end."""

from llm_locust.store.files import (
    ARMS_FILE as ARMS_FILE,
)
from llm_locust.store.files import (
    CURVE_FILE as CURVE_FILE,
)
from llm_locust.store.files import (
    FRAMES_FILE as FRAMES_FILE,
)
from llm_locust.store.files import (
    MANIFEST_FILE as MANIFEST_FILE,
)
from llm_locust.store.files import (
    REPEATS_FILE as REPEATS_FILE,
)
from llm_locust.store.files import (
    REPORT_HTML_FILE as REPORT_HTML_FILE,
)
from llm_locust.store.files import (
    REPORT_MD_FILE as REPORT_MD_FILE,
)
from llm_locust.store.files import (
    REQUESTS_FILE as REQUESTS_FILE,
)
from llm_locust.store.files import (
    STAGES_FILE as STAGES_FILE,
)
from llm_locust.store.files import (
    SUMMARY_FILE as SUMMARY_FILE,
)
from llm_locust.store.files import (
    TIMESERIES_FILE as TIMESERIES_FILE,
)
from llm_locust.store.files import (
    StoreError as StoreError,
)
from llm_locust.store.files import (
    create_run_dir as create_run_dir,
)
from llm_locust.store.files import (
    holds_a_run as holds_a_run,
)
from llm_locust.store.files import (
    read_manifest as read_manifest,
)
from llm_locust.store.files import (
    write_json as write_json,
)
from llm_locust.store.files import (
    write_manifest as write_manifest,
)
from llm_locust.store.files import (
    write_text as write_text,
)
from llm_locust.store.frame_log import (
    FrameLog as FrameLog,
)
from llm_locust.store.frame_log import (
    SegmentLog as SegmentLog,
)
from llm_locust.store.frames import (
    FrameHeader as FrameHeader,
)
from llm_locust.store.frames import (
    FrameIndex as FrameIndex,
)
from llm_locust.store.frames import (
    FrameRef as FrameRef,
)
from llm_locust.store.frames import Seqs as Seqs
from llm_locust.store.frames import (
    Tear as Tear,
)
from llm_locust.store.frames import (
    encode_frame as encode_frame,
)
from llm_locust.store.frames import format_ranges as format_ranges
from llm_locust.store.frames import (
    frame_header as frame_header,
)
from llm_locust.store.frames import (
    index_frames as index_frames,
)
from llm_locust.store.frames import parse_ranges as parse_ranges
from llm_locust.store.frames import (
    unique_frames as unique_frames,
)
from llm_locust.store.merge import (
    Merged as Merged,
)
from llm_locust.store.merge import holds_frames as holds_frames
from llm_locust.store.merge import (
    merge as merge,
)
from llm_locust.store.requests import (
    StoredRequests as StoredRequests,
)
from llm_locust.store.requests import (
    compact as compact,
)
from llm_locust.store.requests import (
    iter_requests as iter_requests,
)
from llm_locust.store.requests import (
    open_requests as open_requests,
)
from llm_locust.store.requests import (
    read_requests as read_requests,
)
from llm_locust.store.requests import (
    write_requests as write_requests,
)
from llm_locust.store.spool import (
    SPOOLED as SPOOLED,
)
from llm_locust.store.spool import (
    WORKER_FILE as WORKER_FILE,
)
from llm_locust.store.spool import (
    Spool as Spool,
)
