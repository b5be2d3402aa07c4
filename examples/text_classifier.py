"""A text classifier: texts of different lengths, a collate that pads them, inputs that are a dict.

    python examples/text_classifier.py        # fewer rounds: python examples/text_classifier.py 5

"not good" is bad, so counting words is not enough; good and bad reviews are spread unevenly over the devices. Live on
this machine: `potluck.lab(job, task=task, folder="runs/live")`. On several: `potluck.serve` on one and
`potluck.join(address, token, name=…, task=task)` on each device, which imports this file.
"""

import random
import sys

import torch
from torch import nn

import potluck
from potluck.data import from_torch

WORDS = "good great tasty warm kind", "bad awful bland cold rude", "the a soup was staff it place menu with my very"
GOOD, BAD, OTHER = (words.split() for words in WORDS)
NUMBERS = {word: number for number, word in enumerate(["<pad>", "not", *OTHER, *GOOD, *BAD])}


def write_review(rng: random.Random) -> tuple[list[str], int]:
    words, label = [], rng.randrange(2)
    for _ in range(rng.randint(1, 3)):
        negated = rng.randrange(2)
        opinion = rng.choice(GOOD if label != negated else BAD)
        words += [*rng.choices(OTHER, k=rng.randint(1, 4)), *["not"] * negated, opinion]
    return words, label


def collate(reviews: list[tuple[list[str], int]]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    numbers = [torch.tensor([NUMBERS[word] for word in words]) for words, _ in reviews]
    tokens = nn.utils.rnn.pad_sequence(numbers, batch_first=True)
    return {"tokens": tokens, "mask": tokens > 0}, torch.tensor([label for _, label in reviews])


class Classifier(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(len(NUMBERS), width), nn.Linear(width, 2)
        self.pairs = nn.Conv1d(width, width, kernel_size=2, padding=1)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        pairs = self.pairs(self.words(tokens).mT)[..., :-1].relu() * mask.unsqueeze(1)
        return self.head(pairs.amax(2))


rng = random.Random(0)
train, test = ([write_review(rng) for _ in range(count)] for count in (1500, 400))
task = potluck.Task(Classifier, from_torch(train, test, collate=collate, classes=["bad", "good"]))
job = {"recipe": "fedavg", "task": "own", "fleet": "kitchen-table", "split": {"kind": "dirichlet", "alpha": 0.5},
       "rounds": {"local": {"kind": "adamw", "lr": 0.005}}, "stop": {"rounds": 30, "accuracy": 0.99}}  # fmt: skip

if __name__ == "__main__":
    job["stop"]["rounds"] = int(sys.argv[1]) if sys.argv[1:] else 30
    result = potluck.simulate(job, task=task)
    print(result.metrics, f"\naccuracy {result.summary['accuracy']:.3f}, of guessing 0.5; {result.summary['limit']}")
