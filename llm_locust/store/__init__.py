"""Run directory: frames of record batches during the run, Parquet and JSON at its end."""

from llm_locust.store.files import (
    ARMS_FILE as ARMS_FILE,
    CURVE_FILE as CURVE_FILE,
    FRAMES_FILE as FRAMES_FILE,
    MANIFEST_FILE as MANIFEST_FILE,
    REPEATS_FILE as REPEATS_FILE,
    REPORT_HTML_FILE as REPORT_HTML_FILE,
    REPORT_MD_FILE as REPORT_MD_FILE,
    REQUESTS_FILE as REQUESTS_FILE,
    STAGES_FILE as STAGES_FILE,
    SUMMARY_FILE as SUMMARY_FILE,
    TIMESERIES_FILE as TIMESERIES_FILE,
    StoreError as StoreError,
    create_run_dir as create_run_dir,
    holds_a_run as holds_a_run,
    read_manifest as read_manifest,
    write_json as write_json,
    write_manifest as write_manifest,
    write_text as write_text,
)
from llm_locust.store.frame_log import (
    SPOOLED as SPOOLED,
    WORKER_FILE as WORKER_FILE,
    FrameLog as FrameLog,
    SegmentLog as SegmentLog,
    Spool as Spool,
)
from llm_locust.store.frames import (
    FrameHeader as FrameHeader,
    FrameIndex as FrameIndex,
    FrameRef as FrameRef,
    Seqs as Seqs,
    Tear as Tear,
    encode_frame as encode_frame,
    format_ranges as format_ranges,
    frame_header as frame_header,
    index_frames as index_frames,
    parse_ranges as parse_ranges,
    unique_frames as unique_frames,
)
from llm_locust.store.merge import (
    Merged as Merged,
    holds_frames as holds_frames,
    merge as merge,
)
from llm_locust.store.requests import (
    StoredRequests as StoredRequests,
    compact as compact,
    iter_requests as iter_requests,
    open_requests as open_requests,
    read_requests as read_requests,
    write_requests as write_requests,
)
