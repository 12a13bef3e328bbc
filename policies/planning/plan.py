"""plan(): from a conversation and its stored records to plain data that says what changes and why.

A history is replayed request by request (each is a *step*), in one pass, from the newest step whose state is at hand.
At each step the policies propose edits on blocks that are old enough (a large tool result, for example, once the model
has answered it: policies.rules.offload). A proposal is only an *offer*. `Step._decide` says when offers are carried
out, because an edit of text that was sent before costs a rewrite of the provider's prompt cache:

  tail-cut             the edit begins in the last step. The cached prefix before it stays, so the rewrite is cheap.
  checkpoint:paid      further back, once the rent has exceeded the price of the rewrite ("rent or buy", and its guard
                       against a bill above doing nothing: policies.money.ledger).
  checkpoint:window    the request reaches the hard mark of the model's window or of a price tier: room must be made.
  checkpoint:cold      the provider's cache has expired, so a rewrite costs nothing.
  checkpoint:summary   a summary replaces old turns, and has paid for itself.
  checkpoint:context   the aim is the context: a moment that the preset names has come, whether it pays or not; or the
                       request reaches the size that a person has set.
  checkpoint:shed      there was no time to plan: nothing new is decided, and what stands is put back as it is.

What an earlier request decided is taken from memory. What memory does not hold is decided again, with the same outcome.

A request for which nothing would be decided needs no plan (`is_quiet`).
"""

from collections.abc import Callable
from dataclasses import replace

from policies.context import Context
from policies.keep import digest_of
from policies.model.conversation import Conversation
from policies.model.edits import Edit
from policies.model.memory import Memory
from policies.model.summary_record import SummaryUse
from policies.money.ledger import Ledger
from policies.planning.folding import Folding
from policies.planning.state import Plan, PlanSettings, PlanState, Pointers
from policies.planning.step import AT_ONCE, OverdueError, Step, Watch, undecided_steps
from policies.rules.base import ConfiguredPolicy
from policies.rules.summarize import Summarize

_MANY = 16
"""Steps in one call after which the state before the newest one is returned, too: the same request may come again."""
_APART, _LATER = 16, 4
"""Steps between two states that are kept in case planning is stopped: so many, and a quarter of those before."""


def plan(
    conversation: Conversation,
    settings: PlanSettings,
    memory: Memory | None = None,
    state: PlanState | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Plan:
    """Plan every step of the history that `state` does not cover yet; the last one is the request being served. `state`
    is what an earlier call returned for a prefix of this history under the same settings; it is not changed. From the
    step on before which `stop` returns true, nothing new is decided: what records say is repeated, which is cheap.
    Where it returns true inside a long step, that begins some steps earlier."""
    memory, keep = memory or Memory(), digest_of(settings.keep)
    if any(record.keep != keep for record in memory.steps.values()):
        # when other texts were to stay as they are: under these patterns it is decided again, as by whoever never saw
        # another decision
        steps = {at: record for at, record in memory.steps.items() if record.keep == keep}
        memory = replace(memory, steps=steps)
    replay = _Replay(conversation, settings, memory, state or PlanState(Ledger(settings.prices)), stop)
    last = replay.run()
    state = replay.state
    edits_by_block: dict[int, Edit] = {at: state.edits[at] for at in state.edits.keys() - state.folded} | state.folds
    # edits inside a fold are new too: they count again where the summary is taken back
    edits = last.changes.edits_before if last else dict.fromkeys(state.edits)
    new: list[Edit] = [state.edits[at] for at in sorted(edits) if state.edits[at] != edits[at]]
    folds = last.changes.folds_before if last else {}
    new += [fold for at, fold in sorted(state.folds.items()) if folds.get(at) != fold]
    return Plan(
        edits=tuple(map(edits_by_block.__getitem__, sorted(edits_by_block))),
        new=tuple(new),
        wants=tuple(state.wants),
        reason=state.reason,
        marks=state.marks,
        before=state.ledger.original,
        after=state.ledger.total,
        state=state,
        digests=tuple(state.digests),
        shed=conversation.steps - replay.cut,
        reached=replay.reached,
    )


class _Replay:
    """Serves one step of a history after the other, until planning is to stop."""

    def __init__(
        self,
        conversation: Conversation,
        settings: PlanSettings,
        memory: Memory,
        start: PlanState,
        stop: Callable[[], bool],
    ) -> None:
        self._conversation = conversation
        self._settings = settings
        self._memory = memory
        self._fallback = self._start = start
        """A state from which planning can go on, and the first one."""
        self._watch = Watch(stop, settings.count)
        self.cut = conversation.steps
        """The step from which on nothing new is decided."""
        self.reached: PlanState | None = None
        self._go_on_from(start)

    def _go_on_from(self, state: PlanState) -> None:
        self.state = state.copy()
        self._folding = Folding(self._conversation, self.state, self._settings.count)
        self._pointers = Pointers(self._conversation, self.state)

    def _stop_before(self, state: PlanState) -> None:
        """Decide nothing new from this state on."""
        self.cut, self.reached = state.step, None if state.step == self._start.step else state
        self._watch.has_ended = True
        self._go_on_from(state)
        self.state.end_offers()
        self._folding = Folding(self._conversation, self.state, self._settings.count)

    def run(self) -> Step | None:
        """Serve all steps; returns the last one that was served."""
        conversation, records, last = self._conversation, self._memory.steps, None
        undecided = undecided_steps(conversation, self._memory, self._start.step)
        while (step := self.state.step) < conversation.steps:
            if self._watch.is_over():
                self._stop_before(self.state)
            elif step < self.cut:
                self._keep(step)
            last = Step(self._settings, step, self._folding, self._pointers, self._watch)
            decides = step < self.cut and step not in undecided
            try:
                last.serve(records.get(conversation.end_anchor(step)), self._memory, decides=decides)
            except OverdueError:
                last = None
                self._stop_before(self._fallback)
        return last

    def _keep(self, step: int) -> None:
        """Keep the state before this step, where it or the one before is long, or many were served meanwhile."""
        is_long = self._watch.was_long or len(self._conversation.arrived(step)) > AT_ONCE
        if step == self._conversation.steps - 1 and step - self._start.step > _MANY:
            self._fallback = self.reached = self.state.copy()
        elif step > self._fallback.step and (is_long or step - self._fallback.step >= _APART + step // _LATER):
            self._fallback = self.state.copy()


# --- requests that need no plan, because nothing would be decided for them ---
# Laws: where `is_quiet` holds, plan() without a memory changes nothing, sets no cache mark and wants nothing; and as
# long as it holds, a later request is planned the same whether this one was planned or not. It costs next to nothing,
# however long the history is. What a memory holds may still have to be repeated: edits made under other settings, and
# summaries of other branches

_GROWTH = 3
"""The next two requests have at most so many times the tokens of this one, by which a mark counts as near."""
_PRESSED = 0.8
"""The share of the high mark from which on one counts as near at the latest."""
_CLEAR = 0.5
"""The share of the high mark up to which it was not reached under a window that an upstream taught either."""


def is_quiet(conversation: Conversation, settings: PlanSettings) -> bool:
    """True where nothing is decided for a request: it is below the floor, or none of its blocks may be edited at all,
    as in a chat without tools; and no mark of ours is due, no summary wanted, the hard mark not near. A history only
    grows, so what holds of the newest step held of all before it."""
    if settings.prices.window is None:  # another replica may have learned that it is small
        return False
    history = history_tokens(conversation, settings)
    tokens, budgets = settings.head + history, {settings.budget, settings.learned or settings.budget}
    floor, high = min(each.floor for each in budgets), min(each.high for each in budgets)
    locked = settings.is_chat and not settings.recall and not settings.text_protocol
    counted = tokens * max(1.0, settings.factor)
    if tokens >= floor and not (locked and counted <= _CLEAR * high):
        return False
    if counted > high or (settings.marks and tokens >= max(floor, settings.cache.least)):
        return False
    if not all(isinstance(policy, ConfiguredPolicy) for policy in settings.policies):
        return False  # what functions offer is not known
    if settings.summarizing is None:
        return True
    seen, pressed = conversation.steps - 1, _GROWTH * counted > _PRESSED * high
    contexts = [
        Context(
            step=seen,
            prices=settings.prices,
            budget=budget,
            count=settings.count,
            is_chat=settings.is_chat,
            pressed=pressed,
        )
        for budget in budgets
    ]
    writers = [policy for policy in settings.policies if isinstance(policy, Summarize)]
    return not any(
        writer.is_wanted(conversation, context, history, history) for writer in writers for context in contexts
    )


def no_plan(conversation: Conversation, settings: PlanSettings) -> Plan:
    """The plan of a quiet request: all of it stays, and its state has no step yet."""
    use = SummaryUse(criteria=settings.summarizing.criteria if settings.summarizing else None)
    tokens, state = history_tokens(conversation, settings), PlanState(Ledger(settings.prices), use=use)
    return Plan(edits=(), new=(), wants=(), reason="", marks=(), before=tokens, after=tokens, state=state)


def history_tokens(conversation: Conversation, settings: PlanSettings) -> int:
    """Tokens of the history as the client wrote it: what stands behind its head."""
    sums, foldable = conversation.client_tokens, settings.exceptions.foldable_system(conversation)
    return sums[-1] - sums[conversation.head] + conversation.tokens(foldable)
