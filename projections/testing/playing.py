"""Playing a script: every move becomes the events that an engine would append for it."""

from collections.abc import Collection, Sequence
from typing import Any

from batonlog.events import (
    JSON,
    AgentResolved,
    ApprovalDecided,
    ApprovalRequested,
    CallRefused,
    CancelRequested,
    HandoffFiltered,
    HandoffMade,
    HistoryRewritten,
    InputAdded,
    Limits,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    NoteAdded,
    Ref,
    Rewrite,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunStarted,
    ToolAbandoned,
    ToolCalled,
    ToolReturned,
    Usage,
)
from batonlog.events.lifecycle import ASKED, ASKING, CALLED, DECIDED, GATED, IDLE, RUNNING, SETTLED, STOPPED
from batonlog.events.values import load
from batonlog.projections.filters import describe
from batonlog.projections.handover import handover_input, rewrite_input, untaken
from batonlog.projections.history import History
from batonlog.projections.items import ANSWERED_BY, Item
from batonlog.projections.legality import repaired, violations
from batonlog.projections.pairing import Pairing, called, is_call, is_output
from batonlog.projections.request import digest_of
from batonlog.projections.rewrite import operations
from batonlog.projections.selecting import kept
from batonlog.projections.state import Call
from batonlog.projections.testing.edits import Edit, edited
from batonlog.projections.testing.moves import End, Ending, Fork, Handing, Move, Rewriting, Said, Script, Turn
from batonlog.projections.testing.sayings import (
    AGENTS,
    TOOLS,
    TRANSFER,
    TRANSFERS,
    Thing,
    numbered,
    user_message,
)
from batonlog.projections.testing.writer import Writer
from batonlog.projections.wire import WIRE

ISSUERS = (("https://api.openai.com/v1", "gpt-5-mini"), ("http://localhost:8000/v1", "local"))

_GREETING = (user_message("hello"),)
_GATED = {"approved": "run", "rejected": "refuse", "settled": "answer"}


class Player(Writer):
    """Plays moves, each in whatever state the session is."""

    def __init__(self, script: Script, session: str = "s") -> None:
        super().__init__(session)
        self._script = script
        self._forks = 0

    def play(self) -> None:
        """Play all moves. There is something to show to a model afterwards."""
        for move in self._script.moves:
            self.move(move)
        if not list(self.state.place.items()):
            self._start(_GREETING)

    def move(self, move: Move) -> None:
        """Make one move."""
        match move:
            case Said():
                self._say(move)
            case Turn():
                taken = self.turn(move)
                if taken is not None and move.handing is not None:
                    self._hand_over(taken, move.handing)
                self._complete()
            case Rewriting():
                self._rewrite(move)
            case Ending():
                self._end(move)
            case Fork(back=back):
                if self.records:
                    self._forks += 1
                    self.fork(max(1, len(self.records) - back), f"{self.session}-{self._forks}")

    # -- runs

    def _start(self, items: Sequence[Thing]) -> None:
        agent = self.state.agent or AGENTS[0]
        given = (*_owed(list(self.state.place.settled)), *items)
        self.add(RunStarted(run_id=f"run_{self.next}", agent=agent, input=given, limits=Limits()))

    def _go_on(self) -> None:
        """Have a run that goes on, and no call open."""
        if self.state.phase == IDLE:
            self._start(_GREETING)
        elif self.state.phase != RUNNING:
            self.add(RunResumed(by="worker"))
        for call in self.state.open_calls():
            self._finish(call.ref, End())

    def _say(self, said: Said) -> None:
        state = self.state
        rests = state.phase in (IDLE, STOPPED) and not state.open_calls()
        if rests and (said.goes_to == "turn" or state.phase == STOPPED):
            self._start(said.items)
        else:
            self.add(InputAdded(input=said.items, goes_to=said.goes_to, by="li"))

    def _end(self, ending: Ending) -> None:
        if ending.what == "noted":
            self.add(NoteAdded(name="seen", data=self.next))
        elif self.state.phase != IDLE:
            if ending.what == "cancelled":
                self.add(CancelRequested(by="li"))
            self._go_on()
            match ending.what:
                case "failed":
                    self.add(RunFailed(kind="TimeoutError", message="it took too long"))
                case "paused":
                    self.add(RunPaused(reason="limit", limit="10 turns"))
                case "resumed":
                    self.add(RunResumed(by="another worker"))
                case "cancelled":
                    self.add(RunCancelled(by="li"))

    def _complete(self) -> None:
        """End the run if its last answer leaves nothing to do."""
        state = self.state
        if state.phase == RUNNING and state.done and not state.unanswered:
            self.add(RunCompleted(output=state.final.ref if state.final is not None else None))

    # -- the model

    def turn(self, turn: Turn) -> Ref | None:
        """Play a turn up to its handoff. Returns the transfer that is to be taken, if there is one."""
        self._ask()
        if turn.mishap in ("again", "run"):
            request = self.state.version
            again = turn.mishap == "again"
            self.add(ModelFailed(request=request, kind="APIError", message="overloaded", retried=again))
            if not again:
                self.add(RunFailed(kind="APIError", message="overloaded"))
            self._ask()
        self._respond(turn)
        transfers = [call.ref for call in self.state.open_calls() if call.name in TRANSFERS.values()]
        taken = transfers[0] if transfers and turn.handing is not None and turn.mishap != "cut" else None
        self._answer(turn, transfers)
        if taken is None:
            for ref in transfers:
                self._refuse(ref, "truncated" if turn.mishap == "cut" else "limit")
        return taken

    def _ask(self) -> None:
        self._go_on()
        agent = self.state.agent or AGENTS[0]
        if agent not in self.state.parts:
            self.add(
                AgentResolved(
                    agent=agent, instructions=f"You are {agent}.", offered=_offers(agent), settings={}
                )
            )
        number = self._script.models[AGENTS.index(agent) % len(self._script.models)]
        issuer = ISSUERS[number]
        self._repair(issuer)
        state = self.state
        view, parts, chain = state.place.taken(), state.parts[agent], state.chain
        goes_on = chain is not None and chain.issuer == issuer and chain.held < len(view)
        first = chain.held if goes_on and chain is not None else 0
        previous = chain.response_id if goes_on and chain is not None else None
        digest = digest_of(
            view=view,
            parts=parts,
            issuer=issuer,
            first=first,
            previous_response_id=previous,
            conversation=None,
        )
        self.add(
            ModelRequested(
                turn=(state.run.turns if state.run else 0) + 1,
                agent=agent,
                parts=parts.versions,
                issuer=issuer,
                previous_response_id=previous,
                first=first,
                wire=WIRE,
                attempt=state.attempts + 1,
                stored=self._script.stored,
                digest=digest,
            )
        )

    def _repair(self, issuer: tuple[str, str]) -> None:
        """Mend what this provider would refuse, as the engine does before it asks."""
        view = list(self.state.place.settled)
        found = list(violations(view, issuer))
        changes = operations(view, repaired(view, issuer)) if found else None
        if changes is not None:
            repairs = tuple(f"{fault.rule}: {fault.message}" for fault in found)
            rewrite = Rewrite(filter="repair", parameters={}, operations=tuple(changes), repairs=repairs)
            self.add(HistoryRewritten(cause="repair", rewrite=rewrite))

    def _respond(self, turn: Turn) -> None:
        agent = self.state.agent or AGENTS[0]
        others = [name for name in AGENTS if name != agent]
        items: list[Thing] = []
        transfers = turn.handing.to if turn.handing is not None else 0
        for item in (item for group in turn.groups for item in group):
            if item.get("name") == TRANSFER:
                item = {**item, "name": TRANSFERS[others[transfers % len(others)]]}
                transfers += 1
            items.append(item)
        if turn.handing is not None and not any(item.get("name") in TRANSFERS.values() for item in items):
            name = TRANSFERS[others[transfers % len(others)]]
            items.append(
                {"type": "function_call", "id": "fc", "call_id": "", "name": name, "arguments": "{}"}
            )
        version = self.next
        self.add(
            ModelResponded(
                request=version - 1,
                response_id=f"resp_{version}",
                output=tuple(numbered(items, version)),
                usage=Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15),
                status="incomplete" if turn.mishap == "cut" else "completed",
            )
        )

    # -- calls

    def _answer(self, turn: Turn, transfers: Sequence[Ref]) -> None:
        """Answer all calls but transfers, in the order in which their answers arrive."""
        own = [call.ref for call in self.state.open_calls() if call.ref not in transfers]
        ends = [turn.ends[n % len(turn.ends)] for n in range(len(own))]
        if turn.mishap == "cut":
            ends = [End("refused")] * len(own)
        waiting = list(zip(own, ends, strict=True))
        for ref, end in waiting:
            self._begin(ref, end)
        for answered in range(len(own) + 1):
            for after, said in turn.meanwhile:
                if after == answered:
                    self.add(InputAdded(input=said.items, goes_to=said.goes_to, by="li"))
            if waiting:
                late = turn.late[answered % len(turn.late)] if turn.late else 0
                self._finish(*waiting.pop(late % len(waiting)))

    def _begin(self, ref: Ref, end: End) -> None:
        """Take the first step with a call that was just asked for, unless it is refused."""
        call = self.state.calls[ref]
        if end.how in _GATED:
            self.add(ApprovalRequested(call=ref, reason="external" if end.how == "settled" else "approval"))
        elif end.how != "refused":
            self.add(_called(call))

    def _finish(self, ref: Ref, end: End) -> None:
        """Take a call from wherever it is to its answer."""
        crashes = 1 if end.how in ("lost", "repeated") else 0
        while (call := self.state.calls[ref]).state != SETTLED:
            if call.state == ASKED and end.how == "refused":
                self._refuse(ref, "invalid_arguments")
            elif call.state == ASKED:
                self._begin(ref, end)
            elif call.state == GATED:
                self._decide(call, end)
            elif call.state == DECIDED:
                self._obey(call)
            elif call.state == CALLED and crashes:
                crashes -= 1
                self.add(RunResumed(by="another worker"))
            elif call.state == CALLED and end.how != "stopped":
                self._return(call, end.output, error=end.how == "failed", shown=end.shown)
            elif end.how == "repeated":
                self.add(_called(call))
            else:
                self._abandon(call, "cancelled" if call.state == CALLED else "unknown")

    def _decide(self, call: Call, end: End) -> None:
        """A person decides: while the run waits for it, if nothing else is in flight."""
        waits = not any(other.state == CALLED for other in self.state.calls.values())
        if waits:
            self.add(RunPaused(reason="approval"))
        verdict: Any = _GATED.get(end.how, "run")
        output = end.output if verdict == "answer" else None
        self.add(ApprovalDecided(call=call.ref, verdict=verdict, by="anna", output=output))
        if waits:
            self.add(RunResumed(by="worker"))

    def _obey(self, call: Call) -> None:
        match call.verdict:
            case "run":
                self.add(_called(call))
            case "answer":
                self._return(call, load(call.output) if call.output is not None else None)
            case _ if call.attempts:
                self._abandon(call, "unknown")
            case _:
                self._refuse(call.ref, "rejected")

    def _return(self, call: Call, output: JSON, *, error: bool = False, shown: JSON = None) -> None:
        self.add(ToolReturned(output=output, error=error, shown=shown, **_answering(call)))

    def _refuse(self, ref: Ref, reason: str) -> None:
        call = self.state.calls[ref]
        if call.attempts:
            self._abandon(call, "superseded")
        else:
            self.add(
                CallRefused(reason=reason, answer=f"{call.name} was not run: {reason}.", **_answering(call))
            )

    def _abandon(self, call: Call, reason: Any) -> None:
        self.add(ToolAbandoned(reason=reason, answer="Nobody knows whether it happened.", **_answering(call)))

    # -- handoffs and other rewrites

    def ready(self, taken: Ref, handing: Handing) -> HandoffMade:
        """Bring the session to where the filter of a handoff is called, and return the switch."""
        for call in self.state.open_calls():
            if call.ref != taken:
                self._refuse(call.ref, "not_first")
        call = self.state.calls[taken]
        if handing.callback:
            self.add(_called(call))
        (target,) = (agent for agent, name in TRANSFERS.items() if name == call.name)
        return HandoffMade(
            source=call.agent,
            target=target,
            arguments={},
            acknowledgement=handing.acknowledgement,
            **_answering(call),
        )

    def _hand_over(self, taken: Ref, handing: Handing) -> None:
        made = self.ready(taken, handing)
        state = self.state
        given = handover_input(state, made, session=self.session, context=None, arguments={})
        gone = untaken(state, taken)
        left = kept(History(edited(given, handing.filters)), lambda item: not _is_of(item, gone))
        if (rewrite := self._rewrite_to(given, left, handing.filters)) is not None:
            self.add(HandoffFiltered(call=taken, rewrite=rewrite))
        self.add(made)

    def _rewrite(self, move: Rewriting) -> None:
        if self.state.phase == ASKING or self.state.open_calls():
            self._go_on()
        if not self.state.place.settled:
            return
        given = rewrite_input(self.state, move.cause, session=self.session, context=None)
        rewrite = self._rewrite_to(given, edited(given, move.filters), move.filters)
        if rewrite is not None:
            self.add(HistoryRewritten(cause=move.cause, rewrite=rewrite))

    def _rewrite_to(
        self, before: Sequence[Item], after: Sequence[Item], filters: Sequence[Edit]
    ) -> Rewrite | None:
        changes = operations(before, after, past=self.state.place.past)
        if changes is None:
            return None
        name = describe(filters)[0] if filters else "drop_untaken_transfers"
        return Rewrite(filter=name, parameters={}, operations=tuple(changes))


def _is_of(item: Item, calls: Collection[Ref | None]) -> bool:
    """Whether an item tells such a call and nothing else."""
    return item.answers in calls or (bool(item.covers) and all(ref in calls for ref in item.covers))


def _called(call: Call) -> ToolCalled:
    return ToolCalled(call=call.ref, name=call.name, arguments={}, attempt=call.attempts + 1)


def _answering(call: Call) -> dict[str, Any]:
    return {"call": call.ref, "call_id": call.call_id, "item": ANSWERED_BY[call.item]}


def _offers(agent: str) -> tuple[Thing, ...]:
    """Tools, and handoffs to everybody else."""

    def offer(name: str, **promised: JSON) -> Thing:
        return {"tool": {"type": "function", "name": name, "parameters": {}}, "name": name, **promised}

    transfers = [
        offer(name, kind="handoff", targets=[target]) for target, name in TRANSFERS.items() if target != agent
    ]
    return (*(offer(name) for name in TOOLS), *transfers)


_ANSWERS: dict[str, Thing] = {
    "computer_call": {"output": {"type": "computer_screenshot", "image_url": "https://example.com/7.png"}},
    "shell_call": {"output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    "local_shell_call": {"output": "a"},
    "apply_patch_call": {"status": "completed"},
    "mcp_approval_request": {"approve": True},
}


def _owed(view: Sequence[Item]) -> list[Thing]:
    """Answers to what a provider had the client do."""
    pairing = Pairing()
    for n, item in enumerate(view):
        if is_call(item):
            pairing.call(n, item)
        elif is_output(item):
            pairing.answer(item)
    made: list[Thing] = []
    for call in pairing.waiting.values():
        if call.type in _ANSWERS:
            name = "approval_request_id" if call.type == "mcp_approval_request" else "call_id"
            made.append({"type": ANSWERED_BY[call.type], name: called(call), **_ANSWERS[call.type]})
    return made
