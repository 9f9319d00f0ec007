"""Train on our tasks with Tinker, the service of Thinking Machines or `hud up`: `pip install openhud[train] tinker`.

    model = TinkerModel(sampler, folder)                            # a sampling client as a model of agents
    job = await tasks.run(ToolLoopAgent(model), group=8)
    client.forward_backward(datums_of(job.runs), "importance_sampling")

Environments, rollouts, rewards and records are here; weights, gradients and sampling are the service's. Needs the tokenizer and
the chat template of the model in a folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud_integrations.tinker.datums import datum_of, datums_of
    from hud_integrations.tinker.model import TinkerModel
    from hud_integrations.tinker.sampling_process import SamplingProcess

# The platform imports `service` for its routes, without torch.
__getattr__ = lazy(
    __name__,
    {
        "SamplingProcess": ".sampling_process",
        "TinkerModel": ".model",
        "datum_of": ".datums",
        "datums_of": ".datums",
    },
)

__all__ = ["SamplingProcess", "TinkerModel", "datum_of", "datums_of"]
