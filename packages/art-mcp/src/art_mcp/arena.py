"""Run attempts at scenarios and keep what they earned: each finished rollout is on disk before the next is needed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from openai import APIConnectionError, APIStatusError

from art_core.errors import EngineClosedError, InfrastructureError
from art_core.parallel import gather_rollouts
from art_core.protocols import Store
from art_core.trajectories import Trajectory
from art_core.types import Exchange, RolloutError
from art_mcp.connect import ServerStartError
from art_mcp.progress import Progress
from art_mcp.rollout import AgentLimits, attempt
from art_mcp.scenarios import Scenario
from art_mcp.stack import ServedModel, Toolbox
from art_mcp.verify import verify


@dataclass(frozen=True)
class Job:
    """One rollout to make: the `member`-th attempt at `scenario` in `phase` (and step, within training)."""

    phase: str
    step: int
    scenario: Scenario
    member: int

    @property
    def id(self) -> str:
        return f"{self.phase}-{self.step:03d}-{self.scenario.id}-{self.member:02d}"

    def seed(self, run_seed: int) -> int:
        """Held-out attempts draw from the same stream before and after training, so that only the policy differs."""
        place = f"train-{self.step}" if self.phase == "train" else "held-out"
        text = f"{run_seed}/{place}/{self.scenario.id}/{self.member}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


@dataclass
class Arena:
    """Where rollouts happen. `earned` holds the rollouts of an interrupted run by id; they are not made twice.

    Training rollouts are drawn from the policy itself, at temperature 1, since that is what is trained; held-out ones
    at `eval_temperature`, as an agent would be used.
    """

    model: ServedModel
    toolbox: Toolbox
    store: Store
    progress: Progress
    limits: AgentLimits
    eval_temperature: float
    run_seed: int
    max_concurrency: int
    earned: dict[str, Trajectory]
    log: str = "trajectories"

    async def run(self, jobs: Sequence[Job]) -> list[Trajectory]:
        """One trajectory per job, in the order of the jobs.

        Raises:
            InfrastructureError: more than half of the jobs failed for reasons the policy is not responsible for.
            Exception: any other error of a rollout. Nothing further can succeed, or it is a defect that must be seen.
        """
        version = self.model.engine.policy_version
        fresh: list[int] = []
        results: list[Trajectory | None] = []
        tally = _Tally()
        for index, job in enumerate(jobs):
            known = self.earned.get(job.id)
            usable = known is not None and known.metadata.get("policy_version") == version
            results.append(known if usable else None)
            if known is not None and usable:
                self._count(tally, known)
            else:
                fresh.append(index)

        def finished(trajectory: Trajectory) -> None:
            self.store.append(self.log, trajectory.model_dump(mode="json"))
            self._count(tally, trajectory)

        recorded: dict[str, list[Exchange]] = {}

        def failed(index: int, error: RolloutError) -> Trajectory:
            trajectory = _trajectory(jobs[fresh[index]], version, error=error)
            trajectory.exchanges = recorded.pop(trajectory.id, [])
            return trajectory

        made = await gather_rollouts(
            [self._rollout(jobs[index], version, recorded) for index in fresh],
            max_concurrency=self.max_concurrency,
            failed=failed,
            fatal=lambda error: not isinstance(error, InfrastructureError) or isinstance(error, ServerStartError),
            on_done=finished,
        )
        for index, trajectory in zip(fresh, made, strict=True):
            results[index] = trajectory
        done = [trajectory for trajectory in results if trajectory is not None]
        errors = [trajectory.error for trajectory in done if trajectory.error]
        if len(errors) * 2 > len(done):
            raise InfrastructureError(
                f"{len(errors)} of {len(done)} rollouts failed, first with {errors[0].kind}: {errors[0].message}; "
                "what was earned is kept: run the same command again once the cause is mended"
            )
        return done

    def _rollout(
        self, job: Job, version: int, recorded: dict[str, list[Exchange]]
    ) -> Callable[[], Awaitable[Trajectory]]:
        """The attempt at `job`. What the server recorded of one that fails is left in `recorded`."""

        async def run() -> Trajectory:
            started = time.monotonic()
            server = self.model.server
            server.open_trajectory(job.id)
            try:
                client = self.model.client.with_options(base_url=server.base_url(job.id))
                async with self.toolbox.caller() as caller:
                    scenario = job.scenario.in_workdir(caller.workdir)
                    outcome = await attempt(
                        scenario.task,
                        client=client,
                        model=self.model.name,
                        tools=self.toolbox.specs,
                        caller=caller,
                        limits=self.limits,
                        seed=job.seed(self.run_seed),
                        temperature=1.0 if job.phase == "train" else self.eval_temperature,
                    )
            except APIStatusError as error:
                if error.code == "engine_closed":
                    raise EngineClosedError(f"the engine ended in the middle of the run: {error.message}") from error
                raise InfrastructureError(f"the model server answered {error.status_code}: {error.message}") from error
            except APIConnectionError as error:
                raise EngineClosedError(f"the model server cannot be reached any more: {error}") from error
            finally:
                recorded[job.id] = server.close_trajectory(job.id)
            verdict = verify(scenario, self.toolbox.tools, outcome.calls, outcome.answer)
            trajectory = _trajectory(job, version)
            trajectory.exchanges = recorded.pop(job.id)
            trajectory.reward = verdict.reward
            trajectory.metrics = {
                "success": float(verdict.success),
                "turns": float(outcome.num_turns),
                "tool_calls": float(len(outcome.calls)),
                "tool_errors": float(len(outcome.tool_errors)),
                "tool_results_cut": float(
                    sum(c.result is not None and c.result.num_cut_chars > 0 for c in outcome.calls)
                ),
                "truncated": float(outcome.truncated),
                "duration_s": round(time.monotonic() - started, 3),
                **{f"reward/{name}": value for name, value in verdict.parts.items()},
            }
            trajectory.logs = [f"tool error: {text[:300]}" for text in outcome.tool_errors]
            trajectory.metadata["answer"] = outcome.answer
            return trajectory

        return run

    def _count(self, tally: _Tally, trajectory: Trajectory) -> None:
        tally.add(trajectory)
        self.progress.advance(tally.figures(), tokens=trajectory.num_trained_tokens)


@dataclass
class _Tally:
    count: int = 0
    reward: float = 0.0
    success: float = 0.0
    failed: int = 0

    def add(self, trajectory: Trajectory) -> None:
        if trajectory.error is not None or trajectory.reward is None:
            self.failed += 1
            return
        self.count += 1
        self.reward += trajectory.reward
        self.success += trajectory.metrics.get("success", 0.0)

    def figures(self) -> dict[str, str]:
        figures = {}
        if self.count:
            figures["reward"] = f"{self.reward / self.count:.2f}"
            figures["success"] = f"{self.success / self.count:.2f}"
        if self.failed:
            figures["failed"] = str(self.failed)
        return figures


def _trajectory(job: Job, policy_version: int, *, error: RolloutError | None = None) -> Trajectory:
    return Trajectory(
        id=job.id,
        scenario_id=job.scenario.id,
        metadata={
            "phase": job.phase,
            "step": job.step,
            "member": job.member,
            "tool": job.scenario.tool,
            "policy_version": policy_version,
        },
        error=error,
    )
