"""The catalogue of networks: input shape, published number of parameters and builder of each."""

from __future__ import annotations

from functools import partial

import msgspec
import torch

from potluck.model.zoo import (
    alexnet,
    densenet,
    googlenet,
    inception_v4,
    mobilenet,
    resnet,
    small_networks,
    transformer,
    vgg,
)
from potluck.model.zoo.builder_options import Builder

__all__ = ["CATALOGUE", "ModelEntry"]

Shape = tuple[int, ...]

MNIST: Shape = (1, 28, 28)
CIFAR: Shape = (3, 32, 32)
IMAGENET: Shape = (3, 224, 224)

TORCHVISION = "torchvision's page of the model, num_params"
PYTORCHCV = "osmr/imgclsmob (pytorchcv), checked in its tests; He et al. 2015, table 6, has {} for option A"
TWO_FORMS = "{} in torchvision for 1000 classes; this one has a 3×3 stem and 10 classes, as in kuangliu/pytorch-cifar"
VGG_CIFAR = "{} with the convolutions' biases in kuangliu/pytorch-cifar; this one has none, since batch norm follows"


class ModelEntry(msgspec.Struct, frozen=True):
    """What is known of a network before it is built; `parameters` is for its default options.

    A network of tokens takes whole numbers; `classes` are then the scores of a position or of a text.
    """

    name: str
    shape: Shape
    classes: int
    parameters: int
    source: str
    summary: str
    takes_tokens: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its inputs."""
        return torch.int64 if self.takes_tokens else torch.float32


def _catalogue_row(
    name: str, builder: Builder, shape: Shape, classes: int, parameters: int, source: str, summary: str
) -> tuple[ModelEntry, Builder]:
    return ModelEntry(name, shape, classes, parameters, source, summary), builder


def _text_row(
    name: str, builder: Builder, shape: Shape, classes: int, parameters: int, source: str, summary: str
) -> tuple[ModelEntry, Builder]:
    return ModelEntry(name, shape, classes, parameters, source, summary, takes_tokens=True), builder


def _vgg_row(depth: vgg.Depth, bn: bool, parameters: int) -> tuple[ModelEntry, Builder]:
    name, norm = (f"vgg{depth}-bn", "with batch norm") if bn else (f"vgg{depth}", "without batch norm")
    builder = partial(vgg.build_imagenet, depth, bn)
    return _catalogue_row(
        name, builder, IMAGENET, 1000, parameters, TORCHVISION, f"VGG-{depth} {norm}, three large linear layers"
    )


def _vgg_cifar_row(depth: vgg.Depth, parameters: int, with_biases: str) -> tuple[ModelEntry, Builder]:
    summary = f"VGG-{depth} with batch norm for 32×32, one linear layer"
    builder = partial(vgg.build_cifar, depth)
    return _catalogue_row(
        f"vgg{depth}-bn-cifar", builder, CIFAR, 10, parameters, VGG_CIFAR.format(with_biases), summary
    )


def _resnet_row(depth: resnet.Depth, parameters: int, kind: str) -> tuple[ModelEntry, Builder]:
    summary = f"ResNet-{depth}, {kind}"
    return _catalogue_row(
        f"resnet{depth}", partial(resnet.build_imagenet, depth), IMAGENET, 1000, parameters, TORCHVISION, summary
    )


def _resnet_cifar_row(depth: resnet.Depth, parameters: int, large: str) -> tuple[ModelEntry, Builder]:
    summary = f"ResNet-{depth} for 32×32: 3×3 stem, no pooling before the stages"
    source = TWO_FORMS.format(large)
    return _catalogue_row(
        f"resnet{depth}-cifar", partial(resnet.build_cifar, depth), CIFAR, 10, parameters, source, summary
    )


def _resnet_thin_row(depth: int, parameters: int, option_a: str) -> tuple[ModelEntry, Builder]:
    summary = f"ResNet-{depth} for CIFAR, 16 to 64 filters, projection shortcuts (option B)"
    source = PYTORCHCV.format(option_a)
    return _catalogue_row(f"resnet{depth}", partial(resnet.build_thin, depth), CIFAR, 10, parameters, source, summary)


ROWS = (
    _catalogue_row(
        "lenet", partial(small_networks.build_lenet), MNIST, 10, 61_706,
        "LeCun et al. 1998 with full connections in C3, as in Dive into Deep Learning 7.6",
        "LeNet-5 with ReLU and max-pooling",
    ),
    _catalogue_row(
        "alexnet", partial(alexnet.build_imagenet), IMAGENET, 1000, 61_100_840,
        TORCHVISION,
        "AlexNet in one column, two hidden layers of 4096",
    ),
    _catalogue_row(
        "alexnet-cifar", partial(alexnet.build_cifar), CIFAR, 10, 2_472_266,
        "bearpaw/pytorch-classification README: 2.47 M",
        "AlexNet for 32×32, one linear layer (15 million multiply-adds)",
    ),
    _vgg_row(11, False, 132_863_336),
    _vgg_row(11, True, 132_868_840),
    _vgg_row(16, False, 138_357_544),
    _vgg_row(16, True, 138_365_992),
    _vgg_row(19, False, 143_667_240),
    _vgg_row(19, True, 143_678_248),
    _vgg_cifar_row(11, 9_228_362, "9,231,114"),
    _vgg_cifar_row(16, 14_724_042, "14,728,266"),
    _vgg_cifar_row(19, 20_035_018, "20,040,522"),
    _catalogue_row(
        "vgg9", partial(vgg.build_vgg9), CIFAR, 10, 3_491_530,
        "Wang et al. 2020 (FedMA, arXiv:2002.06440), table of VGG-9's layers, added up",
        "VGG-9: six convolutions, three linear layers, no batch norm",
    ),
    _resnet_thin_row(20, 272_474, "0.27 M"),
    _resnet_thin_row(56, 855_770, "0.85 M"),
    _resnet_row(18, 11_689_512, "basic blocks"),
    _resnet_row(50, 25_557_032, "bottleneck blocks"),
    _resnet_row(152, 60_192_808, "bottleneck blocks"),
    _resnet_cifar_row(18, 11_173_962, "11,689,512"),
    _resnet_cifar_row(152, 58_156_618, "60,192,808"),
    _catalogue_row(
        "googlenet", partial(googlenet.build_googlenet), IMAGENET, 1000, 6_624_904,
        TORCHVISION,
        "GoogLeNet (Inception v1) with batch norm, auxiliary heads off",
    ),
    _catalogue_row(
        "inception-v4", partial(inception_v4.build_inception_v4), (3, 299, 299), 1000, 42_679_816,
        "timm and Cadene/pretrained-models.pytorch, inceptionv4",
        "Inception-v4",
    ),
    _catalogue_row(
        "mobilenet-v2", partial(mobilenet.build_imagenet), IMAGENET, 1000, 3_504_872,
        TORCHVISION,
        "MobileNetV2, twenty layers, ReLU6",
    ),
    _catalogue_row(
        "mobilenet-v2-cifar", partial(mobilenet.build_cifar), CIFAR, 10, 2_236_682,
        "chenyaofo/pytorch-cifar-models, mobilenetv2_x1_0: 2.24 M (3,504,872 in torchvision for 1000 classes)",
        "MobileNetV2 for 32×32, halved three times instead of five",
    ),
    _catalogue_row(
        "densenet40", partial(densenet.build_densenet40), CIFAR, 10, 1_019_722,
        "Huang et al. 2016, table 2: 1.0 M for L = 40, k = 12",
        "DenseNet-40, k = 12, no bottleneck, no compression",
    ),
    _catalogue_row(
        "densenet121", partial(densenet.build_densenet121), IMAGENET, 1000, 7_978_856,
        TORCHVISION,
        "DenseNet-121, k = 32, bottleneck and compression",
    ),
    _catalogue_row(
        "ds-cnn", partial(small_networks.build_ds_cnn), (1, 49, 10), 12, 23_180,
        "layers of MLPerf Tiny's keyword spotting model, added up without the biases that batch norm makes idle",
        "DS-CNN for keyword spotting, takes any frames × features",
    ),
    _catalogue_row(
        "cnn", partial(small_networks.build_cnn), MNIST, 10, 1_199_882,
        "Reddi et al. 2020 (arXiv:2003.00295) and TensorFlow Federated, create_conv_dropout_model",
        "Two 3×3 convolutions and one hidden layer, usual in federated learning",
    ),
    _catalogue_row(
        "mlp", partial(small_networks.build_mlp), MNIST, 10, 199_210,
        "McMahan et al. 2017 (FedAvg, arXiv:1602.05629), the 2NN",
        "Linear layers with ReLU, two hidden ones of 200 unless asked otherwise",
    ),
    _text_row(
        "gpt", partial(transformer.build_gpt), (64,), 65, 804_096,
        "karpathy/nanoGPT README, tiny Shakespeare on a CPU: 0.80 M, which leaves out 8,192 of position embeddings",
        "GPT: 4 blocks, 4 heads, 128 wide, texts of 64 characters, unless asked otherwise",
    ),
    _text_row(
        "text-encoder", partial(transformer.build_text_encoder), (128,), 2, 443_266,
        "its layers, added up",
        "Transformer encoder that classifies a text: 2 blocks, 4 heads, 128 wide, unless asked otherwise",
    ),
)  # fmt: skip

CATALOGUE: dict[str, tuple[ModelEntry, Builder]] = {entry.name: (entry, builder) for entry, builder in ROWS}
