"""`config.json` of a checkpoint to the model part of a profile: geometry, formats, dialect. Reads no tensor."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from firmtoken.compiler.architectures import FAMILIES
from firmtoken.compiler.family import Family, misfits
from firmtoken.runtime.weights.declared import CONFIG, SEPARATE, Json
from firmtoken.runtime.weights.dotted import put
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.files import read_object
from firmtoken.runtime.weights.quantization import declared, kv_format, part_format
from firmtoken.schema.contradictions import contradictions
from firmtoken.schema.model import Model
from firmtoken.schema.sentences import sentence

USUAL_KEYS = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_q_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "rope_theta": "rope_parameters.rope_theta rope_theta",
    "num_experts": "num_experts num_local_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "moe_intermediate_size": "moe_intermediate_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "rms_norm_eps": "rms_norm_eps",
}
"""Geometry field -> keys, the first that is there counts. transformers writes some under a newer name than the hub."""
PLAIN = {"bfloat16": "bf16", "float32": "fp32"}
KINDS = {"full_attention": "full", "linear_attention": "linear"}
OTHER = "a model with this in its config computes something else; it is not supported"
COMPLETE = "the folder must hold the checkpoint's `config.json`"


def read_model(folder: Path, *, name: str, source: Mapping[str, str]) -> dict[str, object]:
    """The model part of a profile for the checkpoint in `folder`; raises `LoadError` for what we cannot serve.

    `source`: its `model.source`. The folder of one on the hub may hold its config files alone.
    """
    config = read_object(folder / CONFIG, COMPLETE)
    separate = read_object(folder / SEPARATE, COMPLETE) if (folder / SEPARATE).exists() else None
    family = _family(config)
    said = _Said(config)
    _refuse_other_model(said, family)
    data: dict[str, object] = {
        "name": name,
        "family": family.name,
        "geometry": _geometry(said, family),
        "dialect": family.config.dialect,
        "source": dict(source),
    }
    model = _validated(data)
    for misfit in misfits(family, model.geometry):
        raise _invalid(misfit.field, misfit.message)
    kinds = family.describe(model, "cuda").layer_kinds
    _refuse_other_layers(said, kinds)
    formats = _formats(config, separate, family, kinds, _plain(said))
    # The order in which a profile is written: where the checkpoint is comes last.
    ordered = {key: data[key] for key in ("name", "family", "geometry")}
    rest = {key: data[key] for key in ("dialect", "source")}
    complete = {**ordered, "quantization": formats, **rest}
    _validated(complete)
    return complete


class _Said:
    """What the config says; a vision model's says it of its text model one level down."""

    def __init__(self, config: Json) -> None:
        text = config.get("text_config")
        self._levels = (text, config) if isinstance(text, Mapping) else (config,)

    def get(self, keys: str) -> object:
        """The value of the first of these dotted keys that is there and not null."""
        for key in keys.split():
            for level in self._levels:
                found: object = level
                for step in key.split("."):
                    found = found.get(step) if isinstance(found, Mapping) else None
                if found is not None:
                    return found
        return None


def _family(config: Json) -> Family:
    kind = config.get("model_type")
    for family in FAMILIES:
        # A text model saved without its vision wrapper is called `..._text`.
        if kind in (family.name, f"{family.name}_text"):
            return family
    known = ", ".join(f"`{family.name}`" for family in FAMILIES)
    raise LoadError(
        file=CONFIG,
        expected=f"`model_type` one of {known}",
        found="none" if kind is None else f"`{kind}`",
        hint="a model family is one file in compiler/architectures/",
    )


def _refuse_other_model(said: _Said, family: Family) -> None:
    faults = [
        *_differences(said, {"rope_parameters.rope_type": "default", "rope_scaling": None}),
        *_differences(said, family.config.granted),
        *_differences(said, family.config.stated, must_be_there=True),
    ]
    if faults:
        expected, found = faults[0]
        raise LoadError(
            file=CONFIG, expected=expected, found=found, hint=OTHER, more=len(faults) - 1
        )


def _differences(
    said: _Said, wanted: Mapping[str, object], *, must_be_there: bool = False
) -> Iterator[tuple[str, str]]:
    """Expected and found, of each value that makes it another model."""
    for key, value in wanted.items():
        found = said.get(key)
        each = found if isinstance(found, list) else [found]
        if found is None and not must_be_there:
            continue
        if any(item != value for item in each):
            yield f"`{key}: {value}`", "none" if found is None else f"`{found}`"


def _geometry(said: _Said, family: Family) -> dict[str, object]:
    keys = {**USUAL_KEYS, **family.config.keys}
    geometry: dict[str, object] = {}
    for field, names in keys.items():
        value = said.get(names)
        if value is None:
            raise LoadError(
                file=CONFIG, expected=f"`{names.split()[0]}`", found="none", hint=COMPLETE
            )
        put(geometry, field, value)
    geometry["full_attention_interval"] = _interval(said)
    geometry["rotary_dim"] = _rotary_dim(said, geometry["head_dim"])
    return geometry


def _interval(said: _Said) -> object:
    """transformers writes the kinds of the layers and not their interval; without either all are full."""
    listed = said.get("layer_types")
    full = (
        listed.index("full_attention") + 1
        if isinstance(listed, list) and "full_attention" in listed
        else 1
    )
    return said.get("full_attention_interval") or full


def _rotary_dim(said: _Said, head_dim: object) -> object:
    given = said.get("rotary_dim")
    share = said.get("rope_parameters.partial_rotary_factor partial_rotary_factor")
    if given is not None:
        return given
    if share is None or not isinstance(head_dim, int):
        return head_dim
    if isinstance(share, (int, float)) and 0 < share <= 1:
        return round(share * head_dim)
    raise LoadError(
        file=CONFIG,
        expected="a `partial_rotary_factor` above 0, at most 1",
        found=f"`{share}`",
        hint=OTHER,
    )


def _refuse_other_layers(said: _Said, kinds: tuple[str, ...]) -> None:
    listed = said.get("layer_types")
    if listed is None:
        return
    found = tuple(KINDS.get(str(kind), "") for kind in listed) if isinstance(listed, list) else ()
    if found != kinds:
        raise LoadError(
            file=CONFIG,
            expected=f"`layer_types` of {len(kinds)} layers, full attention where its interval has it",
            found="other kinds, or another order",
            hint=OTHER,
        )


def _plain(said: _Said) -> str:
    dtype = said.get("dtype torch_dtype")
    # A file of the makers that says nothing (MiniMax) is in bf16, as all of these families are.
    if dtype is None:
        return "bf16"
    if not isinstance(dtype, str) or dtype not in PLAIN:
        known = " or ".join(f"`{name}`" for name in PLAIN)
        raise LoadError(file=CONFIG, expected=f"`dtype` {known}", found=f"`{dtype}`", hint=OTHER)
    return PLAIN[dtype]


def _formats(
    config: Json, separate: Json | None, family: Family, kinds: tuple[str, ...], plain: str
) -> dict[str, object]:
    stated = declared(config, separate)
    formats: dict[str, object] = {}
    for part in family.config.parts:
        on_axis = [layer for layer, kind in enumerate(kinds) if part.axis in ("layer", kind)]
        formats[part.field] = part_format(part, on_axis if part.axis else (0,), stated, plain)
    if formats["attention_out"] == formats["attention"]:
        del formats["attention_out"]
    # No export quantises these, whatever its list of exceptions forgot (Qwen3.5-122B: the router).
    formats |= {"embedding": plain, "router": plain}
    kv = kv_format(config, separate)
    return formats | ({"kv_cache": kv} if kv else {})


def _validated(data: dict[str, object]) -> Model:
    """The schema's word on it, and what its fields contradict in each other."""
    try:
        model = Model.model_validate(data)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        steps = ("model", *detail["loc"])
        fault = sentence(detail, steps)
        raise _invalid(".".join(map(str, steps)), fault.message) from error
    sections = {"geometry": model.geometry, "quantization": model.quantization}
    values = {
        f"model.{name}.{field}": value
        for name, section in sections.items()
        for field, value in section
    }
    for rule, fault in contradictions(values):
        raise _invalid(rule.fields[0], fault.message)
    return model


def _invalid(field: str, message: str) -> LoadError:
    return LoadError(
        file=CONFIG, expected=f"numbers that fit `{field}`", found=message, hint=COMPLETE
    )
