"""A swarm on a virtual clock, for the driver of stages."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from llm_locust.core.manifest import PrefixShare, ReplicaCache, StageFacts
from llm_locust.swarm.channel.messages import StagedMessage, StageMessage
from llm_locust.swarm.users.stages import StageTimes

S = 1_000_000_000
TIMES = StageTimes(warmup_s=2.0, measured_s=10.0, drain_s=5.0)


@dataclass
class FakeSwarm:
    """Workers that confirm each step, after ``drains_s`` a drain; users take a tenth of a second each."""

    names: tuple[str, ...] = ("a", "b")
    drains_s: float = 1.0
    over_s: float = 1e9
    mute: dict[str, int] = field(default_factory=dict)  # worker -> messages that it does not get
    gone_s: float = 1e9  # when the last worker is lost
    late: frozenset[str] = frozenset()  # workers that say they had not begun the load
    now_s: float = 0.0
    asked: int = 1
    sent: list[tuple[float, str, str, StageMessage]] = field(default_factory=list)
    set_at: list[tuple[float, int]] = field(default_factory=list)
    enough: Callable[[list[StageFacts]], bool] = lambda _: False
    looks_s: float = 0.5
    looked_at: list[tuple[int, float]] = field(default_factory=list)
    kept: list[StageFacts] = field(default_factory=list)
    coming: list[tuple[float, str, StagedMessage]] = field(default_factory=list)
    confirm: Callable[[str, StagedMessage], None] = lambda *_: None
    prepares_s: float = 3.0
    prepared: list[tuple[float, PrefixShare, int]] = field(default_factory=list)
    cache_fault: Callable[[int], str] = lambda _: ""  # by stage

    def now_ns(self) -> int:
        return round(self.now_s * S)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        until_s = self.now_s + timeout_s
        while not condition():
            if self.now_s >= until_s:
                return False
            self.now_s = min(self.now_s + 0.25, until_s)
            due = [each for each in self.coming if each[0] <= self.now_s]
            self.coming = [each for each in self.coming if each[0] > self.now_s]
            for _, worker, staged in due:
                self.confirm(worker, staged)
        return True

    def is_over(self) -> bool:
        return self.now_s >= self.over_s

    def workers(self) -> frozenset[str]:
        return frozenset(self.names if self.now_s < self.gone_s else self.names[:-1])

    def users(self) -> int:
        return self.asked

    def set_users(self, users: int) -> None:
        self.set_at.append((self.now_s, users))
        self.now_s += abs(users - self.asked) / 10
        self.asked = users

    def tell(self, step: StageMessage, workers: Iterable[str]) -> None:
        for worker in workers:
            self.sent.append((self.now_s, worker, step.step, step))
            if worker not in self.workers():
                continue
            if self.mute.get(worker, 0):
                self.mute[worker] -= 1
                continue
            takes_s = self.drains_s + max(0.0, step.at_ns / S - self.now_s) if step.step == "drain" else 0.1
            staged = StagedMessage(
                run=step.run,
                stage=step.stage,
                step=step.step,
                loaded=worker not in self.late,
                cut=1,
                unsent=2,
                finished=7,
            )
            self.coming.append((self.now_s + takes_s, worker, staged))

    def prepare(self, prefix: PrefixShare, stage: int) -> list[ReplicaCache]:
        self.prepared.append((self.now_s, prefix, stage))
        self.now_s += self.prepares_s
        return [ReplicaCache(target="http://r", primed=prefix.prefixes, fault=self.cache_fault(stage))]

    def counted(self, caches: list[ReplicaCache]) -> list[ReplicaCache]:
        return [replace(cache, hits=1.0, queries=2.0) for cache in caches]

    def is_enough(self, stages: list[StageFacts], within_s: float) -> bool:
        self.looked_at.append((stages[-1].number, self.now_s))
        self.now_s += min(self.looks_s, within_s)
        return self.enough(stages)

    def keep(self, stages: list[StageFacts]) -> None:
        self.kept = list(stages)
