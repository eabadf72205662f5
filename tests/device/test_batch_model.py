"""Requests come and go in any order: V2's adapter, V1's slot table and brute force agree on every row of every step."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from played_runner import PlayedRequest, PlayedRunner

from maskfeed_automata import compile
from maskfeed_workers.device_layout import SetLayout
from reference import Oracle
from vocabularies import HAND_STOP, HAND_TOKENS, hand_vocabulary

N_SLOTS = 4
SETS = [
    ["foo", "food", "for"],
    ["a", "b", "c", "d", "ab", "abc"],
    ["été", "tt", "t"],
    ["foo bar", "foo", "bar foo bar"],
    ["rrrrrrr", "rrrrt"],
    ["dab", "cab", "cafe"],
]
ORACLES = [Oracle(HAND_TOKENS, [text.encode() for text in each], [HAND_STOP]) for each in SETS]
# As many as there are slots, so that sets of requests that ended, or wait, must make room.
ARENA_BYTES = N_SLOTS * max(SetLayout.of(compile(hand_vocabulary(), each)).size_bytes for each in SETS)


class Batch(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = PlayedRunner(
            hand_vocabulary(), stop=HAND_STOP, reserved=22, width=26 + 9, n_slots=N_SLOTS, arena_bytes=ARENA_BYTES
        )
        self.running: list[PlayedRequest] = []
        self.waiting: list[PlayedRequest] = []

    @precondition(lambda self: self.runner.free)
    @rule(which=st.integers(-2, len(SETS) - 1), prompt=st.lists(st.integers(0, 24), min_size=1, max_size=4))
    def add(self, which, prompt):
        if which == -2:
            request = self.runner.request(None, None, prompt)
        elif which == -1:
            request = self.runner.request([], ORACLES[0], prompt)
        else:
            request = self.runner.request(SETS[which], ORACLES[which], prompt)
        self.runner.add(request)
        self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(k=st.integers(0, N_SLOTS - 1))
    def abort(self, k):
        self.runner.remove(self.running.pop(k % len(self.running)))

    @precondition(lambda self: self.running)
    @rule(k=st.integers(0, N_SLOTS - 1))
    def preempt(self, k):
        request = self.running.pop(k % len(self.running))
        self.runner.remove(request)
        self.waiting.append(request)

    @precondition(lambda self: self.waiting and self.runner.free)
    @rule()
    def resume(self):
        request = self.waiting.pop(0)
        self.runner.add(request)
        self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), n=st.integers(1, 6))
    def run(self, data, n):
        for _ in range(n):
            if self.running:
                self._step(data)

    def _step(self, data):
        scheduled = []
        for request in data.draw(st.permutations(self.running)):
            if not data.draw(st.booleans()) and scheduled:
                continue  # no budget left for it in this step
            request.left_to_feed = min(request.left_to_feed, data.draw(st.sampled_from([0, 0, 0, 1, 2])))
            drafts = []
            while request.left_to_feed == 0 and len(drafts) < 3 and data.draw(st.booleans()):
                drafts.append(self._draft(request, drafts, data))
            scheduled.append((request, drafts))
        rows = self.runner.step(scheduled, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2)))
        for (request, drafts), made in zip(scheduled, rows, strict=True):
            if request.left_to_feed:
                request.left_to_feed -= 1  # a partial prefill: what was sampled is thrown away
                continue
            self._sample(request, drafts, made, data)

    def _draft(self, request, drafts, data):
        if request.oracle is None or data.draw(st.integers(0, 3)) == 0:
            return data.draw(st.sampled_from([-1, 0, 7, 15, 24, HAND_STOP, 30]))
        ours = [draft for draft in drafts if draft in request.oracle.tokens or draft == HAND_STOP]
        allowed = request.oracle.allowed([*request.output, *drafts]) if ours == drafts else []
        return data.draw(st.sampled_from(allowed)) if allowed else 0

    def _sample(self, request, drafts, made, data):
        accepted = []
        for k, draft in enumerate(drafts):
            if not 0 <= draft < len(made[k]) or made[k][draft] == float("-inf") or not data.draw(st.booleans()):
                break
            accepted.append(draft)
        sampled = int(made[len(accepted)].argmax())
        self.runner.commit(request, [*accepted, sampled])
        ended = HAND_STOP in request.output
        if (ended and data.draw(st.integers(0, 2)) != 0) or len(request.output) > 30:
            self.running.remove(request)
            self.runner.remove(request)


Batch.TestCase.settings = settings(max_examples=6, stateful_step_count=30, deadline=None)
TestBatch = Batch.TestCase
