"""Which layers and calls treat every element or every channel alike, by name."""

from __future__ import annotations

from torch import nn

__all__ = [
    "CHANNELWISE_CALLS",
    "CHANNELWISE_LAYERS",
    "CONCAT_CALLS",
    "ELEMENTWISE_CALLS",
    "ELEMENT_CALLS",
    "ELEMENT_LAYERS",
    "PERMUTATION_CALLS",
    "REDUCTION_CALLS",
    "RESHAPE_CALLS",
    "SOFTMAX_CALLS",
]

ELEMENT_LAYERS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Hardtanh, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Identity, nn.Dropout,
)  # fmt: skip
CHANNELWISE_LAYERS = (
    nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.LPPool2d, nn.ZeroPad2d, nn.ConstantPad2d, nn.ReflectionPad2d,
    nn.ReplicationPad2d, nn.Upsample,
)  # fmt: skip
ELEMENT_CALLS = frozenset([
    "relu", "relu_", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardswish", "hardsigmoid",
    "hardtanh", "tanh", "sigmoid", "softplus", "dropout", "contiguous", "clone", "detach", "float", "double", "to",
    "neg", "abs", "square", "sqrt", "clamp", "exp", "erf",
])  # fmt: skip
CHANNELWISE_CALLS = frozenset([
    "dropout2d", "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "interpolate",
])  # fmt: skip
ELEMENTWISE_CALLS = frozenset([
    "add", "add_", "iadd", "sub", "sub_", "isub", "mul", "mul_", "imul", "truediv", "div", "div_", "itruediv",
    "masked_fill", "pow",
])  # fmt: skip
CONCAT_CALLS = frozenset(["cat", "concat", "concatenate"])
RESHAPE_CALLS = frozenset(["flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten"])
PERMUTATION_CALLS = frozenset(["transpose", "permute", "swapaxes", "swapdims", "movedim"])
REDUCTION_CALLS = frozenset(["mean", "sum", "amax", "amin"])
SOFTMAX_CALLS = frozenset(["softmax", "log_softmax"])
