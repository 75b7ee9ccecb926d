"""Kill the processes that work for a scenario, by kill -9, and see that nothing is lost, and nothing done twice.

The same scenario as for `crash_everywhere`, whose crashes are played. These are real: in the
middle of a transaction, of an effect, of anything.
"""

from itertools import count
from random import Random

from batonlog.engine.testing._crash_kills import Killing, Span, check_forks
from batonlog.engine.testing._crash_passes import CrashReport, Scenario, Trial, place_for_logs
from batonlog.events import UsageError

_PASSES = 10
"""For each kill that is wanted: more passes without show that there is nothing to kill."""


async def kill_at_random(scenario: Scenario, /, *, times: int = 20, seed: int = 0) -> CrashReport:
    """Run `scenario(path of the log)` again and again, kill what works for it at random, recover, compare.

    Each `run`, `resume` or `stream` is done by a process that is forked for it and opens the file anew.
    It is killed by SIGKILL: half of the times at a place that is drawn, around and in the middle of
    commits and effects; half of the times at a moment that is. Another process takes over, and may be
    killed too, until one gets through. The scenario itself goes on, as with `crash_everywhere`,
    which says what is compared and what a person decides. What tools keep in memory dies with
    their process; models are outside, and a ledger in a file counts the effects.

    Args:
        scenario: as for `crash_everywhere`. While an engine works, it must not hold the file open
            by itself.
        times: how often something is killed, at the least.
        seed: draws the places and the moments. Places come again with the seed; moments as far
            as the machine lets them.

    `boundaries` of the report counts the kills. Raises what `crash_everywhere` raises, and UsageError on
    systems without fork and if nothing is there to be killed.
    """
    check_forks()
    async with place_for_logs() as folder:
        trial = Trial(scenario, folder)
        spans: list[Span] = []
        await trial.undisturbed(Killing(None, spans), Killing(None, spans))
        if not spans:
            raise UsageError("the scenario drives nothing: no process worked for it that could be killed")
        kills = 0
        for number in count():
            if kills >= times:
                return trial.report(kills)
            if number > _PASSES * times:
                raise UsageError(f"in {number} passes only {kills} processes could be killed")
            kills += len(await trial.crash(f"{number}", Killing(Random(f"{seed} {number}"), spans)))
    raise AssertionError("unreachable")
