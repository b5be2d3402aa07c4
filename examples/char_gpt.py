"""A GPT of characters on your own files: in this example the docs of Potluck, whose pages are spread over the devices.

    python examples/char_gpt.py        # fewer rounds: python examples/char_gpt.py 5

The loss is compared with that of a table of character pairs, counted in the same text. Live on this machine:
`potluck.lab(job, task=task, folder="runs/live")`. On several: `potluck.serve` on one and
`potluck.join(address, token, name=…, task=task)` on each device, which imports this file.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import potluck
from potluck.data import from_tensors

BLOCK, WIDTH = 64, 64
pages = [path.read_text(encoding="utf-8")[:12000] for path in sorted(Path(__file__).parents[1].glob("docs/*.md"))]
numbers = {character: number for number, character in enumerate(sorted(set("".join(pages))))}
texts = [torch.tensor([numbers[character] for character in page]) for page in pages]
blocks = [text[: -len(text) // 10].unfold(0, BLOCK + 1, BLOCK) for text in texts]
train = torch.cat(blocks)
test = torch.cat([text[-len(text) // 10 :] for text in texts]).unfold(0, BLOCK + 1, BLOCK)  # the end of each page
owner = [page for page, rows in enumerate(blocks) for _ in rows]


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(len(numbers), WIDTH), nn.Embedding(BLOCK, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(numbers))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(BLOCK))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.tokens(tokens) + self.positions.weight, self.mask, is_causal=True))


def loss_of_pairs() -> float:
    counts = torch.full((len(numbers), len(numbers)), 0.1)
    counts.index_put_((train[:, :-1], train[:, 1:]), torch.ones(()), accumulate=True)
    return -(counts / counts.sum(1, keepdim=True)).log()[test[:, :-1], test[:, 1:]].mean().item()


data = from_tensors(train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:], owner=owner)
task = potluck.Task(GPT, data, metrics=["perplexity"])
job = {"recipe": "fedavg", "task": "own", "fleet": "pi-shelf", "split": "owner", "evaluate": 4, "stop": {"rounds": 16},
       "rounds": {"batching": {"size": 8}, "local": {"kind": "adamw", "lr": 0.002, "state": "keep"}}}  # fmt: skip

if __name__ == "__main__":
    job["stop"]["rounds"] = int(sys.argv[1]) if sys.argv[1:] else 16
    result = potluck.simulate(job, task=task)
    print(result.metrics)
    print(f"test loss {result.metrics['test_loss'][-1]:.3f} nats per character, of pairs {loss_of_pairs():.3f}")
