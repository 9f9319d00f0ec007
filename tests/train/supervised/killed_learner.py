"""A supervised training in a process of its own, on fixed runs of a job: `python killed_learner.py MODEL JOB`."""

import asyncio
import sys

from tests.train.supervised.test_supervised_run import tasks

from hud.train.monitoring.progress import Reporter
from hud.train.supervised.config import SupervisedConfig
from hud.train.supervised.supervised_run import learn_from


class Lines(Reporter):
    def started(self, run_id, first_step, steps):
        print(f"from {first_step} of {steps}", flush=True)

    def stepped(self, step, metrics):
        print(f"step {step}", flush=True)


if __name__ == "__main__":
    config = SupervisedConfig(model=sys.argv[1], jobs=[sys.argv[2]], batch=2, epochs=6, lr=1e-2)
    report = asyncio.run(learn_from(config, tasks=tasks, reporter=Lines()))
    print("ended", report.head, flush=True)
