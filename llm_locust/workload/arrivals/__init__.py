"""Send times of requests: schedules that are absolute, reproducible and divided among the workers."""

from llm_locust.workload.arrivals.parse import (
    ArrivalError,
    Sweep,
    TraceFile,
    parse_arrival,
    parse_rate,
    parse_sweep,
)
from llm_locust.workload.arrivals.profile import Leg, Profile, RateSegment, constant, piecewise, sine
from llm_locust.workload.arrivals.schedule import (
    Arrival,
    ArrivalColumns,
    ClassArrival,
    ListedSchedule,
    MixedSchedule,
    Process,
    Schedule,
    Timed,
    Timetable,
    unit_times,
)

__all__ = [
    "Arrival",
    "ArrivalColumns",
    "ArrivalError",
    "ClassArrival",
    "Leg",
    "ListedSchedule",
    "MixedSchedule",
    "Process",
    "Profile",
    "RateSegment",
    "Schedule",
    "Sweep",
    "Timed",
    "Timetable",
    "TraceFile",
    "constant",
    "parse_arrival",
    "parse_rate",
    "parse_sweep",
    "piecewise",
    "sine",
    "unit_times",
]
