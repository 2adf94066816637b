"""Send times of requests: schedules that are absolute, reproducible and divided among the workers."""

from llm_locust.workload.arrivals.mixed import ClassArrival, MixedSchedule
from llm_locust.workload.arrivals.parse import ArrivalError, TraceFile, parse_arrival, parse_rate
from llm_locust.workload.arrivals.process import Process, unit_times
from llm_locust.workload.arrivals.profile import Leg, Profile, RateSegment, constant, piecewise, sine
from llm_locust.workload.arrivals.schedule import (
    Arrival,
    ArrivalColumns,
    ListedSchedule,
    Schedule,
    Timed,
    Timetable,
)
from llm_locust.workload.arrivals.sweep import Sweep, parse_sweep

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
