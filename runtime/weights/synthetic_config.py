"""A model profile as `config.json` and `hf_quant_config.json` of its checkpoint: what `model_config` reads."""

from collections.abc import Iterable, Mapping

from firmtoken.compiler.architectures import FAMILIES
from firmtoken.compiler.tensor_bytes import NVFP4_BLOCK
from firmtoken.runtime.weights.checkpoint import LOGICAL_PREFIX
from firmtoken.runtime.weights.dotted import put
from firmtoken.runtime.weights.layout import LaidTensor
from firmtoken.runtime.weights.model_config import USUAL_KEYS
from firmtoken.schema.model import Geometry, Model

Json = dict[str, object]

PRODUCER = {"name": "ft synth", "version": "1"}
ALGORITHMS = {"U8": "NVFP4", "F8_E4M3": "FP8"}
"""Of codes, by dtype."""
EXPERTS = ".experts."
KINDS = {"full": "full_attention", "linear": "linear_attention"}


def config_json(model: Model) -> Json:
    """Geometry under the family's own keys, and the values without which it would be another model."""
    [family] = [family for family in FAMILIES if family.name == model.family]
    geometry = model.geometry
    text: Json = {
        key: value
        for key, value in {**family.config.granted, **family.config.stated}.items()
        if value is not None
    }
    for field, keys in {**USUAL_KEYS, **family.config.keys}.items():
        put(text, keys.split()[0], _value(geometry, field))
    put(text, "rope_parameters.rope_type", "default")
    put(text, "rope_parameters.partial_rotary_factor", geometry.rotary_dim / geometry.head_dim)
    text["rotary_dim"] = geometry.rotary_dim
    if family.linear_layers:
        kinds = family.describe(model, "cuda").layer_kinds
        text["full_attention_interval"] = geometry.full_attention_interval
        text["layer_types"] = [KINDS[kind] for kind in kinds]
    outer: Json = {"model_type": family.name, "dtype": "bfloat16", **family.config.stated}
    if family.config.prefix == LOGICAL_PREFIX:
        return {**text, **outer}
    return {**outer, "text_config": {**text, "model_type": f"{family.name}_text"}}


def quantisation_json(model: Model, layout: Iterable[LaidTensor]) -> Json | None:
    """What of the layout is quantised, as ModelOpt's exports say it; None where nothing is."""
    listed: dict[str, str] = {}
    plain: list[str] = []
    for tensor in layout:
        module = tensor.name.removesuffix(".weight")
        if tensor.role == "codes":
            stem, is_expert, _ = module.partition(EXPERTS)
            listed[stem + EXPERTS[:-1] if is_expert else module] = ALGORITHMS[tensor.dtype]
        elif tensor.role == "numbers" and len(tensor.shape) > 1:
            plain.append(module)
    if not listed:
        return None
    said: Json = {
        "kv_cache_quant_algo": "FP8" if model.quantization.kv_cache == "fp8" else None,
    }
    if set(listed.values()) == {"NVFP4"}:
        said |= {"quant_algo": "NVFP4", "group_size": NVFP4_BLOCK, "exclude_modules": plain}
    else:
        said["quant_algo"] = "MIXED_PRECISION"
        said["quantized_layers"] = {name: _listed(algorithm) for name, algorithm in listed.items()}
    return {"producer": PRODUCER, "quantization": said}


def _listed(algorithm: str) -> Json:
    if algorithm == "NVFP4":
        return {"quant_algo": "W4A16_NVFP4", "group_size": NVFP4_BLOCK}
    return {"quant_algo": algorithm}


def _value(geometry: Geometry, field: str) -> object:
    value: object = geometry.model_dump()
    for step in field.split("."):
        assert isinstance(value, Mapping)
        value = value[step]
    return value
