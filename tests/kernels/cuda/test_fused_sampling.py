"""The sampling kernel samples what the reference samples, in Triton's interpreter."""

from tests.kernels.cuda.interpreted import check, needs_triton

KERNEL = """
import torch
import hud_kernels.cuda.fused_sampling as fused
from hud_kernels.cuda.fused_sampling import RowParams, sample_rows
from hud.engine.sample.token_sampling import sample_tokens
from hud.trace import SamplingParams

fused.BLOCK = 64
torch.manual_seed(0)
kinds = [(1.0, None, None), (0.0, None, None), (0.7, 0.9, None), (1.3, None, 5), (1.0, 0.5, 20), (0.0, 0.3, 2)]
for trial in range(4):
    for size in (3, 150):
        logits = (torch.randn(len(kinds), size) * 3).to(torch.bfloat16 if trial % 2 else torch.float32)
        if trial % 3 == 0:
            logits[0, ::2] = float("-inf")  # What a grammar forbids.
        numbers = torch.rand(len(kinds), dtype=torch.float64)
        if trial < 2:
            numbers[:] = (0.0, 1 - 2**-53)[trial]
        params = [SamplingParams(temperature=t, top_p=p, top_k=k) for t, p, k in kinds]
        rows = RowParams(
            torch.tensor([one.effective_temperature for one in params]),
            torch.tensor([one.effective_top_p for one in params]),
            torch.tensor([one.top_k or 0 for one in params], dtype=torch.int32),
        )
        for cut in (True, False):
            wanted = params if cut else [SamplingParams(temperature=one.temperature) for one in params]
            ids, logprobs = sample_rows(logits, rows, numbers, cut=cut)
            expected, chances = sample_tokens(logits, wanted, numbers.tolist())
            # Which of equal logits at the edge of a cut stay is not the reference's to say.
            for row, (mine, theirs) in enumerate(zip(ids.tolist(), expected)):
                assert mine == theirs or (cut and logits[row, mine] == logits[row, theirs]), (trial, size, row)
            torch.testing.assert_close(logprobs, torch.tensor(chances), atol=1e-5, rtol=1e-5)

# A row's token does not depend on its batch.
logits, numbers = torch.randn(5, 200), torch.rand(5, dtype=torch.float64)
rows = RowParams(torch.ones(5), torch.ones(5), torch.zeros(5, dtype=torch.int32))
whole = sample_rows(logits, rows, numbers, cut=False)
alone = sample_rows(logits[3:4], RowParams(*(one[3:4] for one in vars(rows).values())), numbers[3:4], cut=False)
assert [one[3].item() for one in whole] == [one[0].item() for one in alone]
print("alike")
"""


@needs_triton
def test_the_kernel_samples_what_the_reference_samples():
    check(KERNEL)
