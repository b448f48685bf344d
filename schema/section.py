"""What every block of a profile has in common: its fields are closed, typed strictly and never change."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,  # the profile's validator holds those of its sections
    )
