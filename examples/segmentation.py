"""Segmentation: a data set that makes each picture when it is needed, with random flips, and a small U-Net.

    python examples/segmentation.py        # fewer rounds: python examples/segmentation.py 5

Every pixel is background, disc or square. The flips differ from epoch to epoch and come from the seed of the run, so
two runs are equal. Live on this machine: `potluck.lab(job, task=task, folder="runs/live")`. On several: `potluck.serve`
on one and `potluck.join(address, token, name=…, task=task)` on each device, which imports this file.
"""

import sys

import torch
from torch import nn
from torch.utils.data import Dataset

import potluck

ROWS, COLUMNS = torch.arange(24.0).unsqueeze(1), torch.arange(24.0)


class Shapes(Dataset):
    def __init__(self, count: int, seed: int, flip: bool = False) -> None:
        self.count, self.seed, self.flip = count, seed, flip

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:  # others read files here
        rng = torch.Generator().manual_seed(self.seed + index)
        mask = torch.zeros(24, 24, dtype=torch.int64)
        for kind, (top, left, size) in enumerate(torch.rand(2, 3, generator=rng).tolist(), start=1):
            down, right = (ROWS - 24 * top).abs(), (COLUMNS - 24 * left).abs()
            mask[(down.hypot(right) if kind == 1 else down.maximum(right)) < 3 + 4 * size] = kind
        image = mask + 0.6 * torch.randn(1, 24, 24, generator=rng)
        return (image.flip(-1), mask.flip(-1)) if self.flip and torch.rand(()) < 0.5 else (image, mask)


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        down, up = nn.Conv2d(width, 3 * width, 4, stride=4), nn.ConvTranspose2d(3 * width, width, 4, stride=4)
        self.coarse = nn.Sequential(down, nn.ReLU(), nn.Conv2d(3 * width, 3 * width, 3, padding=1), nn.ReLU(), up)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv2d(2 * width, 3, 3, padding=1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        fine = self.fine(images)
        return self.head(torch.cat([fine, self.coarse(fine)], dim=1))


task = potluck.Task(UNet, (Shapes(400, seed=0, flip=True), Shapes(100, seed=10_000)), metrics=["mean-iou"])
job = {"recipe": "fedavg", "task": "own", "fleet": "kitchen-table", "split": "iid", "stop": {"rounds": 30},
       "evaluate": 5, "rounds": {"batching": {"size": 16}, "local": {"kind": "adamw", "lr": 0.01}}}  # fmt: skip

if __name__ == "__main__":
    job["stop"]["rounds"] = int(sys.argv[1]) if sys.argv[1:] else 30
    result = potluck.simulate(job, task=task)
    floor = sum((task.data.test.data[index][1] == 0).float().mean() for index in range(100)) / 100 / 3
    print(result.metrics, f"\nmean IoU {result.summary['metrics']['mean-iou']:.3f}; of all background {floor:.3f}")
