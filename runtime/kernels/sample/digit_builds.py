"""What `sample` is compiled to."""

import triton

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.sample.digits import INTEGERS, find_peaks, keep, narrow, pick
from firmtoken.runtime.kernels.sample.no_token import NO_TOKEN


def sample_builds(launch: Launch, *, chunk: int, warps: int, early: int) -> tuple[Build, ...]:
    """All launches."""
    num_chunks = -(-launch.columns("logits") // chunk)
    cut = {"CHUNK": chunk, "EARLY": bool(early)}
    sizes = {**cut, "CHUNKS": triton.next_power_of_2(num_chunks)}
    logits = {"logits_ptr": launch.pointer("logits")}
    peaks, ids = {"peaks_ptr": "*fp32"}, {"ids_ptr": "*i32"}
    handed_on = {"sums_ptr": "*i64", "marks_ptr": "*i64"}
    asked = {"temperature_ptr": "*fp32", "top_k_ptr": "*i32", "top_p_ptr": "*fp32"}
    min_p = {"min_p_ptr": "*fp32"}
    whole = dict.fromkeys(INTEGERS, "i32")
    drawn = {
        "tokens_ptr": "*i64",
        "temperature_ptr": "*fp32",
        **min_p,
        "seed_ptr": "*i64",
        "position_ptr": "*i64",
    }
    narrowed = {
        **logits,
        **peaks,
        **handed_on,
        **asked,
        **whole,
        **dict.fromkeys(("num_rows", "digit", "launch"), "i32"),
    }
    kept = {**logits, **peaks, **handed_on, **asked, **min_p, **whole, "num_rows": "i32"}
    forms = (
        ("peaks", find_peaks, {**logits, **peaks, **ids, **whole}, cut),
        ("top-k", narrow, narrowed, {"WEIGHTS": False, **sizes}),
        ("top-p", narrow, narrowed, {"WEIGHTS": True, **sizes}),
        ("keep", keep, kept, sizes),
        (
            "pick",
            pick,
            {**logits, **peaks, **ids, **handed_on, **drawn, **whole},
            {"NO_TOKEN": NO_TOKEN, **sizes},
        ),
    )
    return tuple(
        Build(
            name=name,
            function=function,
            arguments=arguments,
            constants=constants,
            num_warps=warps,
            grid=(launch.num_rows,) if name == "pick" else (num_chunks, launch.num_rows),
        )
        for name, function, arguments, constants in forms
    )
