"""What `shared_expert` with NVFP4 weights is compiled to: both functions of experts without a pair."""

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.moe_down.nvfp4_pairs import down_build
from firmtoken.runtime.kernels.moe_gate_up.nvfp4_pairs import gate_up_build
from firmtoken.runtime.kernels.nvfp4_blocks import outputs_of_a_program


def shared_expert_builds(
    launch: Launch,
    *,
    gate_up_warps: int,
    gate_up_lanes: int,
    gate_up_outputs: int,
    down_warps: int,
    down_lanes: int,
    down_outputs: int,
    early: int,
) -> tuple[Build, ...]:
    """Both launches. Slots are those of a matrix that is not read."""
    hidden, width = launch.columns("h"), launch.columns("down")
    sizes = {"HIDDEN": hidden, "WIDTH": 0, "PAIRS": 0, "SHARED": width, "EARLY": bool(early)}
    up_tile = outputs_of_a_program(gate_up_warps, gate_up_lanes, gate_up_outputs)
    down_tile = outputs_of_a_program(down_warps, down_lanes, down_outputs)
    return (
        gate_up_build(
            "gate_up",
            launch.pointer("h"),
            {
                **sizes,
                "SLOT_BYTES": hidden // 2,
                "SCALE_AT": 0,
                "GLOBALS_AT": 0,
                "WARPS": gate_up_warps,
                "LANES": gate_up_lanes,
                "OUTPUTS": gate_up_outputs,
            },
            (launch.num_rows, -(-width // up_tile) + 1),
        ),
        down_build(
            "down",
            launch.pointer("h"),
            {
                **sizes,
                "SLOT_BYTES": hidden // 2,
                "CODES_AT": 0,
                "SCALE_AT": 0,
                "GLOBAL_AT": 0,
                "WARPS": down_warps,
                "LANES": down_lanes,
                "OUTPUTS": down_outputs,
            },
            (launch.num_rows, -(-hidden // down_tile)),
        ),
    )
