"""Builds a Hugging Face model from settings alone: `task.model = {kind = "transformers", …}`.

The libraries are the extra `potluck[hf]`; they are imported when a model is built, never before. A model built from a
config gets its weights from torch's generator, which the run seeds; a folder or a Hub name also brings weights.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from torch import nn

from potluck.errors import ModelError, SettingError
from potluck.model.execution_recorder import is_transformers_model
from potluck.settings import Part, Settings, doc, spelling_hint

__all__ = [
    "Lora",
    "ModelSource",
    "TransformersModel",
    "import_extra",
    "is_causal_model",
    "is_config_only",
    "read_config",
]

WEIGHT_FILES = ("*.safetensors", "*.bin")

FILE_KEY = "_name_or_path"  # a config read from a file has it, and may have keys of other versions

HEADS = r".*(classifier|score)$"  # peft trains the whole head of a classifier, so it gets no adapters

# Keys of every config that are not fields of its class.
COMMON_KEYS = frozenset({
    "model_type", "num_labels", "attn_implementation", "transformers_version", "torch_dtype", "decoder_start_token_id",
})  # fmt: skip


class ModelSource(Part, frozen=True, kw_only=True):
    """A model that is described by settings; to add one, subclass this with a `tag`."""

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def predicts(self) -> Literal["class", "token", "next token"]:
        """What the outputs are compared with: the class of a sample, of each token, or the token that follows."""
        raise NotImplementedError

    def build(self, classes: int, vocabulary: int = 0) -> nn.Module:
        """A new model for data of so many classes and different tokens; 0 if it has none."""
        raise NotImplementedError


class Lora(Settings, frozen=True, kw_only=True):
    """`lora`: low-rank adapters, which are trained while the model itself is frozen."""

    rank: Annotated[int, msgspec.Meta(ge=1), doc("Rank of each adapter.")] = 8
    alpha: Annotated[
        float, msgspec.Meta(gt=0), doc("Scale of the adapters: their output is multiplied by alpha / rank.")
    ] = 16.0
    targets: Annotated[
        tuple[str, ...],
        doc("Names, or ends of names, of the layers that get adapters; by default peft's choice, or all linear ones."),
    ] = ()
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1), doc("Dropout before each adapter.")] = 0.0


class TransformersModel(ModelSource, frozen=True, kw_only=True, tag="transformers"):
    """A model of Hugging Face transformers, from a config, a local folder or the Hub; needs `potluck[hf]`."""

    config: Annotated[
        str | dict[str, Any],
        doc(
            "Table with `model_type` and settings of that config class, path of a config.json, folder with weights, "
            "or name on the Hub."
        ),
    ]
    auto: Annotated[str, doc("Auto class of transformers that builds the model, such as `AutoModelForCausalLM`.")] = (
        "AutoModelForCausalLM"
    )
    lora: Annotated[Lora | None, doc("Low-rank adapters to train instead of the model's own weights.")] = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"AutoModel\w*", self.auto):
            raise SettingError(
                "auto", f"{self.auto!r} is not an auto class of transformers, such as AutoModelForCausalLM"
            )
        if isinstance(self.config, dict) and not isinstance(self.config.get("model_type"), str):
            raise SettingError("config.model_type", 'this key is missing; name a model type such as "llama" or "gpt2"')
        if self.config == "":
            raise SettingError("config", "is empty; give a table with `model_type`, a path or a name on the Hub")

    @property
    def name(self) -> str:
        return self.config["model_type"] if isinstance(self.config, dict) else Path(self.config).name

    @property
    def predicts(self) -> Literal["class", "token", "next token"]:
        if self.auto == "AutoModelForCausalLM":
            return "next token"
        return "token" if self.auto in ("AutoModelForTokenClassification", "AutoModelForMaskedLM") else "class"

    def build(self, classes: int, vocabulary: int = 0) -> nn.Module:
        auto = self._auto_class()
        derived = self._derived(classes, vocabulary)
        if isinstance(self.config, dict):
            module = self._from_config(auto, self.config, derived)
        else:
            module = self._from_name(auto, self.config, derived)
        _check_vocabulary(module.config, vocabulary)
        module.config.use_cache = False  # the cache is for generation; in training it only takes memory
        return module if self.lora is None else self._with_adapters(module, self.lora)

    def _auto_class(self) -> Any:
        transformers = import_extra("transformers")
        auto = getattr(transformers, self.auto, None)
        if auto is None:
            known = [name for name in dir(transformers) if name.startswith("AutoModel")]
            raise SettingError("task.model.auto", f"transformers has no {self.auto!r}{spelling_hint(self.auto, known)}")
        return auto

    def _from_config(self, auto: Any, table: Mapping[str, Any], derived: Mapping[str, Any]) -> Any:
        config = _make_config(table, {key: value for key, value in derived.items() if not _has_key(table, key)})
        return _call_library(lambda: auto.from_config(config, dtype="float32"), f"{self.auto} of {self.name}")

    def _from_name(self, auto: Any, name: str, derived: Mapping[str, Any]) -> Any:
        path = Path(name).expanduser()
        if path.exists() and is_config_only(path):
            return self._from_config(auto, read_config(path), derived)
        if not path.is_dir() and not _is_hub_name(name):
            raise SettingError("task.model.config", f"there is no file or folder {name!r}")
        options: dict[str, Any] = {"local_files_only": True} if path.is_dir() else {}
        source = str(path) if path.is_dir() else name
        options |= {key: value for key, value in derived.items() if key == "num_labels"}
        return _call_library(
            lambda: auto.from_pretrained(source, dtype="float32", **options),
            f"{name!r}" if path.is_dir() else f"{name!r}, which is no local folder, from the Hub",
        )

    def _derived(self, classes: int, vocabulary: int) -> dict[str, Any]:
        """What the data says about the model, for a config that leaves it out."""
        labels = {"num_labels": classes} if classes and "Classification" in self.auto else {}
        return labels | ({"vocab_size": vocabulary} if vocabulary else {})

    def _with_adapters(self, module: Any, lora: Lora) -> nn.Module:
        peft = import_extra("peft")
        known = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
        default = None if module.config.model_type in known else "all-linear"
        settings = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=list(lora.targets) or default,
            exclude_modules=None if lora.targets or default is None else HEADS,
            task_type=_peft_task(self.auto),
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                adapted: nn.Module = peft.get_peft_model(module, settings)
        except (ValueError, TypeError) as error:
            text = _one_line(error)
            problem = f"no layer is called {', '.join(map(repr, lora.targets))}" if "not found" in text else text
            layers = sorted({name.rpartition(".")[2] for name, part in module.named_modules() if _is_adaptable(part)})
            raise SettingError(
                "task.model.lora.targets", f"{problem}; layers of this model: {', '.join(layers)}"
            ) from None
        return adapted


def is_causal_model(module: nn.Module) -> bool:
    """Whether a Hugging Face model predicts the next token, with or without adapters."""
    unwrap: Any = getattr(module, "get_base_model", None)
    base = module if unwrap is None else unwrap()
    return is_transformers_model(base) and any(word in type(base).__name__ for word in ("CausalLM", "LMHead"))


def import_extra(name: str, extra: str = "hf") -> Any:
    """Import a library of an extra; ModelError says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != name:
            raise
        raise ModelError(f"this job needs {name}; install it with: pip install 'potluck[{extra}]'") from None


def read_config(path: Path) -> dict[str, Any]:
    """The table of a config.json, or of the one in a folder; null values, which are defaults, are left out."""
    file = path / "config.json" if path.is_dir() else path
    try:
        table = json.loads(file.read_text())
    except FileNotFoundError:
        raise SettingError("task.model.config", f"folder {str(path)!r} has no config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SettingError("task.model.config", f"cannot read {str(file)!r}: {error}") from None
    if not isinstance(table, dict) or not isinstance(table.get("model_type"), str):
        raise SettingError("task.model.config", f"{str(file)!r} has no `model_type`; it is no config of a model")
    return {key: value for key, value in table.items() if value is not None} | {FILE_KEY: str(path)}


def _make_config(table: Mapping[str, Any], derived: Mapping[str, Any]) -> Any:
    import_extra("transformers")
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    kind = table["model_type"]
    if kind not in mapping:
        raise SettingError(
            "task.model.config.model_type",
            f"transformers has no model type {kind!r}{spelling_hint(kind, mapping.keys())}",
        )
    config_class = mapping[kind]
    known = {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map) | COMMON_KEYS
    for key in table if FILE_KEY not in table else ():
        if key not in known:
            raise SettingError(
                f"task.model.config.{key}", f"unknown key of the config of {kind!r}{spelling_hint(key, known)}"
            )
    settings = {key: value for key, value in table.items() if key not in ("model_type", FILE_KEY)}
    return _call_library(lambda: config_class(**settings, **derived), f"the config of {kind}")


def _has_key(table: Mapping[str, Any], key: str) -> bool:
    return key in table or (key == "num_labels" and "id2label" in table)


def _check_vocabulary(config: Any, vocabulary: int) -> None:
    size = getattr(config, "vocab_size", vocabulary)
    if size < vocabulary:
        raise SettingError("task.model.config.vocab_size", f"{size} is less than the data's {vocabulary} tokens")


def _call_library(call: Callable[[], Any], what: str) -> Any:
    """Call transformers without its progress bars and deprecations; what it refuses becomes one line."""
    bars = importlib.import_module("transformers.utils.logging")
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return call()
    except Exception as error:  # each model and config has errors of its own
        raise SettingError("task.model", f"cannot build {what}: {_one_line(error)}") from error
    finally:
        if shown:
            bars.enable_progress_bar()


def _one_line(error: Exception) -> str:
    """The message of an error of transformers on one line, and not more of it than one can read."""
    text = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}…"


def is_config_only(path: Path) -> bool:
    """Whether a path is a config.json or a folder without weights, so that the config is all there is to it."""
    return path.is_file() or not any(True for pattern in WEIGHT_FILES for _ in path.glob(pattern))


def _is_hub_name(name: str) -> bool:
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) is not None and not name.endswith(".json")


def _peft_task(auto: str) -> str | None:
    tasks = {
        "AutoModelForCausalLM": "CAUSAL_LM",
        "AutoModelForSequenceClassification": "SEQ_CLS",
        "AutoModelForTokenClassification": "TOKEN_CLS",
        "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
        "AutoModelForQuestionAnswering": "QUESTION_ANS",
    }
    return tasks.get(auto)


def _is_adaptable(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | nn.Conv2d) or type(module).__name__ == "Conv1D"
